#include "inference/model/spec/mixer_specs.h"

namespace ingot::inference {

std::size_t window_values(const CompressorSpec& spec, std::size_t width) {
  const std::size_t series = spec.overlap ? 2 : 1;
  return (series * spec.ratio - 1) * 2 * series * width;
}

CompressedState state_of(const CompressedSpec& spec) {
  CompressedState state{.keys = std::max<std::size_t>(spec.window - 1, 1) * spec.head_dim};
  if (spec.compressor) state.windows = window_values(*spec.compressor, spec.head_dim);
  if (spec.topk > 0) state.index_windows = window_values(*spec.compressor, spec.index_head_dim);
  return state;
}

NgramState state_of(const NgramSpec& spec) {
  const std::size_t n = spec.multipliers.size();
  return {.inputs = (spec.kernel - 1) * n * spec.channels, .tokens = n - 1};
}

}  // namespace ingot::inference
