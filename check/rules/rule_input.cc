#include "check/rules/rule_input.h"

#include <fmt/format.h>

#include "engines/verdicts.h"

namespace ingot::check {

RuleFacts::RuleFacts(const Checkpoint& checkpoint, std::uint64_t ranks)
    : EngineInput(checkpoint), checkpoint_(checkpoint), ranks_(ranks) {}

const EngineLimitsMet& RuleFacts::engine_limits() const {
  if (!engine_limits_) {
    const std::vector<engines::EngineWeight> weights =
        engines::engine_weights(checkpoint_, *this, {.tensor_parallel = ranks_});
    engine_limits_.emplace(checkpoint_.dialect());
    for (const engines::EngineWeight& weight : weights) engine_limits_->add(weight);
  }
  return *engine_limits_;
}

const formats::MissingTensors& RuleFacts::missing() const {
  if (!missing_) missing_.emplace(checkpoint_);
  return *missing_;
}

const Vocabulary& RuleFacts::vocabulary() const {
  if (!vocabulary_)
    vocabulary_ = read_vocabulary(checkpoint_.directory() / "tokenizer.json", "tokenizer.json");
  return *vocabulary_;
}

const StoredTensor* RuleInput::part_of(const LogicalTensor& tensor, Part part) const {
  const formats::StoredParts& parts = tensor.encoding.stored;
  return parts.has(part) ? &checkpoint.stored()[parts[part]] : nullptr;
}

std::vector<const StoredTensor*> RuleInput::parts_of_weights(
    std::initializer_list<Part> parts) const {
  std::vector<const StoredTensor*> found;
  for (const LogicalTensor& tensor : weights()) {
    if (!is_about(tensor.encoding.scheme)) continue;
    for (const Part part : parts) {
      if (const StoredTensor* stored = part_of(tensor, part)) found.push_back(stored);
    }
  }
  return found;
}

bool RuleInput::may_read(const StoredTensor& tensor) const {
  if (!checkpoint.has_data(tensor.file)) return false;
  if (tensor.n_bytes <= options.most_bytes) return true;
  facts.unread.insert(&tensor);
  return false;
}

OddSearch RuleInput::search() const {
  return {.checkpoint = checkpoint, .threads = options.threads, .check_stop = [this] {
            stop_if_asked();
          }};
}

bool may_hide_codes(const Checkpoint& checkpoint) {
  const formats::SlicingRecord* slicing = checkpoint.slicing();
  return (slicing != nullptr && (slicing->pp > 1 || slicing->ep > 1)) ||
         std::ranges::any_of(checkpoint.tensors(), is_decoded, &LogicalTensor::encoding);
}

}  // namespace ingot::check
