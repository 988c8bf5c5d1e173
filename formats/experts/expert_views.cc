#include "formats/experts/expert_views.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/experts/expert_view.h"
#include "formats/experts/separation.h"
#include "formats/experts/stacking.h"
#include "formats/storage/stack_form.h"

namespace ingot::formats {
namespace {

/// Adds one stack with its matrices the other way round.
void add_turned(const Checkpoint& source, LogicalTensor stack, ExpertView& experts) {
  std::swap(stack.shape[1], stack.shape[2]);
  Encoding& encoding = stack.encoding;
  StoredParts parts;
  encoding.stored.for_each([&](Part part, std::uint32_t index) {
    const StoredTensor& stored = source.stored()[index];
    if (part_facts(part).extent == PartExtent::kOne && part != Part::kWeight &&
        part != Part::kScale) {
      parts.set(part, experts.keep(index));
      return;
    }
    Shape seen = stack.shape;
    if (part == Part::kScale)
      seen = block_scale_shape(seen, encoding.block_cols, encoding.block_rows);
    const bool is_packed = part == Part::kWeight && scheme_facts(encoding.scheme).code_bits == 4;
    View view{.nest = Nest(is_packed ? 4 : dtype_bits(stored.dtype),
                           {{.n = seen[0], .stride = seen[1] * seen[2]},
                            {.n = seen[1], .stride = 1},
                            {.n = seen[2], .stride = seen[1]}}),
              .pieces = {{.stored = index}}};
    if (part == Part::kWeight)
      seen[2] = packing(encoding.scheme, stored.dtype).elements_of(seen[2]);
    parts.set(part, experts.add(stored.name, std::move(seen), std::move(view)));
  });
  std::swap(encoding.block_rows, encoding.block_cols);
  encoding.stored = parts;
  stack.stack =
      stack.stack == StackOrder::kInputMajor ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
  experts.add(std::move(stack));
}

Error not_seen(const Checkpoint& source, std::string_view form, std::string fault) {
  return Error(ErrorCode::kUnsupported, "experts cannot be seen {}: {} (leave --experts at keep)",
               form, std::move(fault))
      .in_file(source.directory().string());
}

}  // namespace

bool holds_stacks(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), is_stack);
}

bool holds_input_major_stacks(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), [](const LogicalTensor& tensor) {
    return tensor.stack == StackOrder::kInputMajor;
  });
}

bool holds_single_experts(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), is_single);
}

std::string separation_fault(const Checkpoint& source) {
  if (source.slicing() != nullptr) return "one rank's slices stay as they are (merge the ranks)";
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!is_stack(tensor)) continue;
    const std::string fault = separation_fault(source, tensor);
    if (!fault.empty()) return fmt::format("'{}': {}", tensor.name, fault);
  }
  return {};
}

std::string stacking_fault(const Checkpoint& source) {
  if (source.slicing() != nullptr) return "one rank's slices stay as they are (merge the ranks)";
  return Stacking(source).fault();
}

Checkpoint with_single_experts(std::shared_ptr<const Checkpoint> source) {
  if (std::string fault = separation_fault(*source); !fault.empty())
    throw not_seen(*source, "one by one", std::move(fault));
  std::vector<std::uint32_t> turned;
  for (std::uint32_t i = 0; i < source->tensors().size(); ++i) {
    const LogicalTensor& tensor = source->tensors()[i];
    if (is_coded(tensor.encoding.scheme) && tensor.stack == StackOrder::kInputMajor)
      turned.push_back(i);
  }
  if (!turned.empty())
    source = std::make_shared<const Checkpoint>(with_turned_stacks(source, turned));
  ExpertView experts(*source);
  for (const LogicalTensor& tensor : source->tensors())
    is_stack(tensor) ? add_separated(*source, tensor, experts) : experts.keep(tensor);
  const Dialect& dialect = dialect_of_singles(*source);
  return experts.finish(std::move(source), dialect);
}

Checkpoint with_stacked_experts(std::shared_ptr<const Checkpoint> source) {
  if (std::string fault = stacking_fault(*source); !fault.empty())
    throw not_seen(*source, "stacked", std::move(fault));
  ExpertView experts(*source);
  for (const LogicalTensor& tensor : source->tensors()) {
    if (!is_single(tensor)) experts.keep(tensor);
  }
  Stacking(*source).add_to(experts);
  const Dialect& dialect = source->dialect();
  return experts.finish(std::move(source), dialect);
}

Checkpoint with_turned_stacks(std::shared_ptr<const Checkpoint> source,
                              std::span<const std::uint32_t> stacks) {
  std::vector<bool> is_turned(source->tensors().size());
  for (const std::uint32_t i : stacks) is_turned[i] = true;
  ExpertView experts(*source);
  for (std::uint32_t i = 0; i < source->tensors().size(); ++i) {
    const LogicalTensor& tensor = source->tensors()[i];
    is_turned[i] ? add_turned(*source, tensor, experts) : experts.keep(tensor);
  }
  const Dialect& dialect = source->dialect();
  return experts.finish(std::move(source), dialect);
}

ExpertsHeld experts_held(const TensorSource& model) {
  ExpertsHeld held{.has_singles = holds_single_experts(model), .stacks = {}};
  for (const LogicalTensor& tensor : model.tensors()) {
    if (!is_stack(tensor)) continue;
    std::optional<bool>& is_turned = held.stacks[tensor.name];
    if (is_usual_stack(tensor)) is_turned = turns_stacks(tensor.encoding.scheme);
  }
  return held;
}

Checkpoint with_experts_as_in(Checkpoint source, const ExpertsHeld& held) {
  const bool has_stacks = !held.stacks.empty();
  if (held.has_singles && !has_stacks && holds_stacks(source) && separation_fault(source).empty())
    source = with_single_experts(std::make_shared<const Checkpoint>(std::move(source)));
  if (has_stacks && !held.has_singles && holds_single_experts(source) &&
      stacking_fault(source).empty())
    source = with_stacked_experts(std::make_shared<const Checkpoint>(std::move(source)));
  std::vector<std::uint32_t> turned;
  for (std::uint32_t i = 0; i < source.tensors().size(); ++i) {
    const LogicalTensor& tensor = source.tensors()[i];
    const auto made = held.stacks.find(tensor.name);
    if (tensor.stack != StackOrder::kNone && made != held.stacks.end() && made->second &&
        stack_order(*tensor.rule, *made->second) != tensor.stack)
      turned.push_back(i);
  }
  if (turned.empty()) return source;
  return with_turned_stacks(std::make_shared<const Checkpoint>(std::move(source)), turned);
}

}  // namespace ingot::formats
