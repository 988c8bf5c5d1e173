#include "convert/run/set_converter.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::convert {
namespace {

TensorResult converted(const TensorTask& task, std::optional<float> amax) {
  switch (task.planned.action) {
    case Action::kCopy:
    case Action::kRewrap:
      return keep_codes(task);
    case Action::kCast:
      return goes_through_bands(task.tensor, task.planned) ? encode(task, amax) : transcode(task);
    case Action::kQuantize:
      return encode(task, amax);
    case Action::kDrop:
      break;
  }
  return {};
}

}  // namespace

void SetConverter::operator()(std::span<const std::uint32_t> tensors) {
  std::optional<float> amax;
  const std::uint32_t set = context_.plan.tensors[tensors.front()].fused_set;
  if (set != PlannedTensor::kNone) {
    amax = journalled_amax(set);
    if (!amax) amax = joint_amax(set);
  }
  for (const std::uint32_t index : tensors) {
    results_.of[index] =
        at_tensor(index, [&](const TensorTask& task) { return converted(task, amax); });
    context_.writer.finish_item(index);
  }
  loop_.forget_kept();
}

// Names file and tensor in errors of `act`.
template <typename Act>
std::invoke_result_t<const Act&, const TensorTask&> SetConverter::at_tensor(std::uint32_t index,
                                                                            const Act& act) {
  const TensorTask task(context_, loop_, tiles_, index);
  try {
    for (const std::uint32_t stored : task.plan.reread(task.planned)) loop_.keep(stored);
    return act(task);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kInterrupted || error.code() == ErrorCode::kNoSpace) throw;
    const auto& stored = context_.plan.source.stored()[task.tensor.encoding.stored.weight()];
    error.in_file(context_.plan.source.files()[stored.file].name).in_tensor(task.tensor.name);
    throw;
  }
}

// The amax of a set that an earlier run began: the source of a finished tensor may be gone.
std::optional<float> SetConverter::journalled_amax(std::uint32_t set) const {
  for (const std::uint32_t index : context_.plan.fused_sets[set]) {
    if (results_.done[index] != 0) return results_.of[index].amax;
  }
  return std::nullopt;
}

float SetConverter::joint_amax(std::uint32_t set) {
  float largest = 0;
  for (const std::uint32_t index : context_.plan.fused_sets[set])
    largest = std::max(largest, at_tensor(index, amax_of));
  return largest;
}

}  // namespace ingot::convert
