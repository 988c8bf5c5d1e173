#include "formats/experts/separation.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/experts/expert_views.h"
#include "formats/places/window.h"

namespace ingot::formats {
namespace {

std::vector<const TensorRule*> members_of(const Checkpoint& source, const LogicalTensor& stack) {
  std::vector<const TensorRule*> rows;
  for (const StackMembers& facts : kStacks) {
    if (facts.stack != role_of(stack)) continue;
    for (std::size_t i = 0; i < facts.n; ++i) {
      const TensorRule* row =
          find_row(source.family(), source.config(), facts.members[i], stack.layer);
      if (row == nullptr) return {};
      rows.push_back(row);
    }
  }
  return rows;
}

std::string_view usual_leaf(Role member) {
  return member == Role::kExpertGate ? "gate_proj"
         : member == Role::kExpertUp ? "up_proj"
                                     : "down_proj";
}

/// The names of an expert's parts: those of the dialect, else of another one that has them all.
/// Stacks without a config may be in a form that no loader of theirs has one by one.
const StorageRow* names_of(const Dialect& dialect, const Checkpoint& source,
                           const LogicalTensor& stack) {
  if (const StorageRow* own = storage_of(dialect, source, stack)) return own;
  if (source.config().quantization) return nullptr;
  for (const Dialect* other : dialects()) {
    const StorageRow* row = storage_of(*other, source, stack);
    if (row != nullptr && row->global_divides == stack.encoding.global_divides) return row;
  }
  return nullptr;
}

/// Builds a view of stacks in which each expert has tensors of its own.
class Separation {
 public:
  Separation(const Checkpoint& source, ExpertView& experts)
      : source_(source), dialect_(dialect_of_singles(source)), experts_(experts) {}

  // Adds a stack that has no fault.
  void add(const LogicalTensor& stack) {
    const auto members = members_of(source_, stack);
    const std::uint64_t n_outputs = stack.shape[outputs_axis(stack)];
    for (std::uint64_t expert = 0; expert < stack.shape.front(); ++expert) {
      for (std::size_t m = 0; m < members.size(); ++m) {
        LogicalTensor single;
        single.rule = members[m];
        single.layer = stack.layer;
        single.expert = static_cast<std::uint32_t>(expert);
        single.name =
            row_name(source_.family(), source_.config(), *single.rule, single.layer, single.expert);
        single.shape = {n_outputs / members.size()};
        if (stack.shape.size() == 3)
          single.shape.push_back(stack.shape[stack.stack == StackOrder::kInputMajor ? 1 : 2]);
        const Window rows = rows_of_member(stack.rule->gate_up, stack.shape[outputs_axis(stack)],
                                           members.size(), m);
        is_coded(stack.encoding.scheme) ? add_coded(stack, std::move(single), expert, m, rows)
                                        : add_plain(stack, std::move(single), expert, rows);
      }
    }
  }

 private:
  void add_plain(const LogicalTensor& stack, LogicalTensor single, std::uint64_t expert,
                 const Window& own) {
    const std::uint32_t stored = stack.encoding.stored.weight();
    const std::uint64_t n_outputs = stack.shape[outputs_axis(stack)];
    const std::uint64_t n_inputs = single.shape.size() == 2 ? single.shape[1] : 1;
    // Biases are columns.
    const bool is_turned = stack.stack == StackOrder::kInputMajor;
    const std::uint64_t row_stride = is_turned ? 1 : n_inputs;
    const std::uint32_t bits = dtype_bits(source_.stored()[stored].dtype);
    View view{.nest = Nest(bits, {{.n = own.n, .stride = own.step * row_stride},
                                  {.n = n_inputs, .stride = is_turned ? n_outputs : 1}}),
              .pieces = {
                  {.stored = stored,
                   .offset = (expert * n_outputs * n_inputs + own.first * row_stride) * bits / 8}}};
    single.encoding = stack.encoding;
    single.encoding.stored = StoredParts(experts_.add(single.name, single.shape, std::move(view)));
    experts_.add(std::move(single));
  }

  void add_coded(const LogicalTensor& stack, LogicalTensor single, std::uint64_t expert,
                 std::uint64_t member, const Window& rows) {
    const StorageRow& storage = *names_of(dialect_, source_, stack);
    const Encoding& whole = stack.encoding;
    const std::uint64_t n_rows = stack.shape[1], n_experts = stack.shape[0];
    single.encoding = whole;
    single.encoding.block_rows = cover(rows, whole.block_rows, n_rows).unit;
    // One scale for all of a matrix is one scale for all of this expert's matrix.
    if (scheme_facts(storage.scheme).group_rows == 0)
      single.encoding.block_rows = single.shape.front();
    StoredParts parts;
    whole.stored.for_each([&](Part part, std::uint32_t index) {
      const StoredTensor& stored = source_.stored()[index];
      const PartRow& row = *find_part_row(storage, part);
      Shape shape = part_shape(row, whole.scheme, single.shape,
                               {single.encoding.block_rows, single.encoding.block_cols});
      const std::uint32_t bits = dtype_bits(stored.dtype);
      const std::uint64_t count = stored.n_bytes * 8 / bits;
      const bool has_rows = part == Part::kWeight || (part == Part::kScale && count > 1);
      const std::uint64_t block = part == Part::kWeight ? 1 : whole.block_rows;
      // One number for all experts is the number of each, and one for an expert that of its
      // members.
      const std::uint64_t n_numbers = std::max<std::uint64_t>(count / n_experts, 1);
      // Loaders of single experts have one number for gate and up: codes are made again for it.
      if (part == Part::kGlobal && n_numbers > 1) single.encoding.is_reordered = true;
      const Window own = has_rows ? cover(rows, block, n_rows).units
                                  : Window{.first = n_numbers > 1 ? member : 0, .n = 1};
      const std::uint64_t n_whole =
          has_rows ? ceil_div(n_rows, std::min(block, n_rows)) : n_numbers;
      const std::uint64_t expert_bytes = count > 1 ? stored.n_bytes / n_experts : 0;
      const std::uint64_t row_bytes = count > 1 ? expert_bytes / n_whole : stored.n_bytes;
      if (part == Part::kWeight) shape = {own.n, row_bytes * 8 / bits};
      View view{
          .nest = Nest(
              8, {{.n = own.n, .stride = own.step * row_bytes}, {.n = row_bytes, .stride = 1}}),
          .pieces = {{.stored = index, .offset = expert * expert_bytes + own.first * row_bytes}}};
      parts.set(part, experts_.add(part_name(row, single.name), std::move(shape), std::move(view)));
    });
    single.encoding.stored = parts;
    experts_.add(std::move(single));
  }

  const Checkpoint& source_;
  const Dialect& dialect_;
  ExpertView& experts_;
};

}  // namespace

std::size_t outputs_axis(const LogicalTensor& stack) {
  const bool is_last = stack.shape.size() < 3 || stack.stack == StackOrder::kInputMajor;
  return is_last ? stack.shape.size() - 1 : 1;
}

Window rows_of_member(GateUpOrder order, std::uint64_t n_outputs, std::uint64_t n_members,
                      std::uint64_t m) {
  const std::uint64_t own = n_outputs / n_members;
  if (order == GateUpOrder::kInterleaved) return {.first = m, .n = own, .step = n_members};
  return {.first = m * own, .n = own};
}

std::vector<std::string> single_modules(const Checkpoint& source, const LogicalTensor& stack,
                                        std::uint32_t expert) {
  std::vector<std::string> modules;
  for (const TensorRule* row : members_of(source, stack)) {
    modules.emplace_back(
        module_name(row_name(source.family(), source.config(), *row, stack.layer, expert)));
  }
  if (!modules.empty()) return modules;
  const std::string_view module = module_name(stack.name);
  for (const StackMembers& facts : kStacks) {
    if (facts.stack != role_of(stack)) continue;
    for (std::size_t i = 0; i < facts.n; ++i) {
      modules.push_back(fmt::format("{}.{}.{}", module.substr(0, module.rfind('.')), expert,
                                    usual_leaf(facts.members[i])));
    }
  }
  return modules;
}

std::string separation_fault(const Checkpoint& source, const LogicalTensor& stack) {
  const auto members = members_of(source, stack);
  if (members.empty())
    return fmt::format("family {} has no names for experts one by one", source.family().name);
  const Shape& shape = stack.shape;
  const bool is_bias = is_expert_bias(role_of(stack));
  if (shape.size() != (is_bias ? 2 : 3) || element_count(shape).value_or(0) == 0 ||
      shape[outputs_axis(stack)] % members.size() != 0)
    return fmt::format("its shape {} is none of equal experts", shape_text(shape));
  if (!is_coded(stack.encoding.scheme)) return {};
  if (names_of(dialect_of_singles(source), source, stack) == nullptr)
    return fmt::format("dialect {} has no names for its parts", dialect_of_singles(source).name);
  const std::size_t axis = outputs_axis(stack);
  const std::uint64_t block = axis == 1 ? stack.encoding.block_rows : stack.encoding.block_cols;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const Window rows =
        rows_of_member(stack.rule->gate_up, stack.shape[outputs_axis(stack)], members.size(), m);
    if (!cover(rows, block, shape[axis]).is_apart)
      return fmt::format("blocks of {} outputs belong to gate and to up", block);
  }
  std::string odd;
  stack.encoding.stored.for_each([&](Part part, std::uint32_t) {
    const PartExtent extent = part_facts(part).extent;
    if (part != Part::kWeight && part != Part::kScale && extent != PartExtent::kOne)
      odd = fmt::format("{} is not shared out to experts", part_facts(part).meaning);
  });
  return odd;
}

void add_separated(const Checkpoint& source, const LogicalTensor& stack, ExpertView& experts) {
  Separation(source, experts).add(stack);
}

}  // namespace ingot::formats
