#include "formats/experts/stacking.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/config/routing.h"
#include "formats/storage/encoding.h"

namespace ingot::formats {
namespace {

std::size_t member_of(const StackMembers& stack, Role role) {
  const auto end = stack.members.begin() + static_cast<std::ptrdiff_t>(stack.n);
  return static_cast<std::size_t>(std::find(stack.members.begin(), end, role) -
                                  stack.members.begin());
}

/// The stack that this role belongs to, and the family's row for it in the layer; a null row where
/// the family has none.
std::pair<const StackMembers*, const TensorRule*> stack_of(const Checkpoint& source, Role role,
                                                           std::uint32_t layer) {
  const StackMembers* any = nullptr;
  for (const StackMembers& stack : kStacks) {
    if (member_of(stack, role) == stack.n) continue;
    if (any == nullptr) any = &stack;
    if (const TensorRule* row = find_row(source.family(), source.config(), stack.stack, layer))
      return {&stack, row};
  }
  return {any, nullptr};
}

}  // namespace

Stacking::Stacking(const Checkpoint& source) : source_(source) {
  std::map<std::pair<std::uint32_t, Role>, std::pair<const StackMembers*, const TensorRule*>> of;
  std::map<Gathered*, std::map<std::uint64_t, const LogicalTensor*>> places;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!is_single(tensor) || !tensor.layer || !tensor.expert) continue;
    const Role role = role_of(tensor);
    const auto [found, is_new] = of.try_emplace({*tensor.layer, role});
    if (is_new) found->second = stack_of(source, role, *tensor.layer);
    const auto& [facts, row] = found->second;
    Gathered& gathered = stacks_[{*tensor.layer, facts->stack}];
    gathered.row = row;
    gathered.n_members = facts->n;
    places[&gathered][*tensor.expert * facts->n + member_of(*facts, role)] = &tensor;
  }
  // Memory follows the tensors that there are, not the number that the config says.
  for (const auto& [gathered, by_place] : places) {
    for (const auto& [place, tensor] : by_place) gathered->tensors.push_back(tensor);
    const std::uint64_t n_experts =
        experts_of(source.config(), by_place.begin()->second->layer);
    if (by_place.size() != n_experts * gathered->n_members) gathered->tensors.push_back(nullptr);
  }
}

std::string Stacking::fault() const {
  for (const auto& [key, gathered] : stacks_) {
    if (std::string found = fault_of(gathered); !found.empty()) {
      const auto any = std::ranges::find_if(
          gathered.tensors, [](const LogicalTensor* tensor) { return tensor != nullptr; });
      return fmt::format("'{}' and its like: {}", (*any)->name, found);
    }
  }
  return {};
}

void Stacking::add_to(ExpertView& experts) const {
  for (const auto& [key, gathered] : stacks_) add(gathered, experts);
}

std::string Stacking::fault_of(const Gathered& gathered) const {
  if (gathered.row == nullptr)
    return fmt::format("family {} has no name for their stack", source_.family().name);
  for (const LogicalTensor* tensor : gathered.tensors) {
    if (tensor == nullptr) return "an expert is missing";
    const Encoding &one = tensor->encoding, &first = gathered.first().encoding;
    bool is_like = one.scheme == first.scheme && one.block_rows == first.block_rows &&
                   one.block_cols == first.block_cols && tensor->shape == gathered.first().shape;
    for (std::size_t p = 0; p < kMaxParts; ++p) {
      const auto part = static_cast<Part>(p);
      is_like = is_like && one.stored.has(part) == first.stored.has(part) &&
                (!one.stored.has(part) || source_.stored()[one.stored[part]].dtype ==
                                              source_.stored()[first.stored[part]].dtype);
    }
    if (!is_like) return fmt::format("'{}' is stored in another way", tensor->name);
  }
  const LogicalTensor& first = gathered.first();
  if (element_count(first.shape).value_or(0) == 0) return "they hold nothing";
  if (is_read_only(first.encoding.scheme))
    return "their codes are of a form that is only read, and no stack has it: convert them --to "
           "bf16 first, and then the output with --experts stacked";
  if (!is_quantized(first)) return {};
  if (storage_of(source_.dialect(), source_, first) == nullptr)
    return fmt::format("dialect {} has no names for parts of a stack", source_.dialect().name);
  std::string odd;
  first.encoding.stored.for_each([&](Part part, std::uint32_t) {
    if (part == Part::kWeight || part == Part::kScale) return;
    const bool is_number = part_facts(part).extent == PartExtent::kOne;
    if (!is_number || part == Part::kGlobal || gathered.n_members > 1)
      odd = fmt::format("{} is no part of a stack", part_facts(part).meaning);
  });
  if (!odd.empty() || gathered.n_members == 1) return odd;
  const std::uint64_t rows = first.shape[0], block = first.encoding.block_rows;
  if (gathered.row->gate_up == GateUpOrder::kInterleaved)
    return block == 1 ? "" : "gate and up have scales of their own, their rows alternate";
  return rows % block == 0 || block >= rows
             ? ""
             : fmt::format("blocks of {} rows do not divide {} rows", block, rows);
}

void Stacking::add(const Gathered& gathered, ExpertView& experts) const {
  const LogicalTensor& first = gathered.first();
  const std::uint64_t n_experts = gathered.tensors.size() / gathered.n_members;
  LogicalTensor stack;
  stack.name =
      row_name(source_.family(), source_.config(), *gathered.row, first.layer, std::nullopt);
  stack.rule = gathered.row;
  stack.layer = first.layer;
  stack.stack = first.shape.size() == 2 ? StackOrder::kOutputMajor : StackOrder::kNone;
  stack.shape = {n_experts};
  stack.shape.insert(stack.shape.end(), first.shape.begin(), first.shape.end());
  stack.shape[1] *= gathered.n_members;
  stack.encoding = first.encoding;
  // Tensors that give a row each in turn.
  const auto n_in_turn = static_cast<std::uint32_t>(
      gathered.row->gate_up == GateUpOrder::kInterleaved ? gathered.n_members : 1);
  StoredParts parts;
  first.encoding.stored.for_each([&](Part part, std::uint32_t index) {
    const StoredTensor& stored = source_.stored()[index];
    const std::uint64_t count = stored.n_bytes * 8 / dtype_bits(stored.dtype);
    const bool has_rows = part == Part::kWeight || part == Part::kScale;
    const std::uint64_t block =
        part == Part::kWeight ? 1 : std::min(first.encoding.block_rows, first.shape[0]);
    INGOT_CHECK(!has_rows || block > 0);
    const std::uint64_t rows = has_rows ? ceil_div(first.shape[0], block) : 1;
    const std::uint64_t cols = count / rows, row_bytes = stored.n_bytes / rows;
    View view{.nest = Nest(8, {{.n = gathered.tensors.size() / n_in_turn, .pieces = n_in_turn},
                               {.n = rows, .stride = row_bytes},
                               {.n = n_in_turn, .pieces = 1},
                               {.n = row_bytes, .stride = 1}}),
              .pieces = {}};
    for (const LogicalTensor* tensor : gathered.tensors)
      view.pieces.push_back({.stored = tensor->encoding.stored[part]});
    const PartRow* row = is_quantized(first)
                             ? find_part_row(*storage_of(source_.dialect(), source_, first), part)
                             : nullptr;
    Shape shape = {n_experts};
    if (has_rows && stack.shape.size() == 3) shape.push_back(rows * gathered.n_members);
    if (has_rows) shape.push_back(stack.shape.size() == 3 ? cols : stack.shape[1]);
    // The shape follows the dialect; where the dialect has one number, each matrix has its own.
    if (row != nullptr && has_rows && row->shape != PartShape::kScalar &&
        row->shape != PartShape::kOne)
      shape =
          part_shape(*row, first.encoding.scheme, stack.shape, {block, first.encoding.block_cols});
    parts.set(part, experts.add(row == nullptr ? stack.name : part_name(*row, stack.name),
                                std::move(shape), std::move(view)));
    // Gate and up keep scales of their own.
    if (part == Part::kScale && gathered.n_members > 1) stack.encoding.block_rows = block;
  });
  stack.encoding.stored = parts;
  experts.add(std::move(stack));
}

}  // namespace ingot::formats
