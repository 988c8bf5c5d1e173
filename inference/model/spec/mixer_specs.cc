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

RecurrentState state_of(const DeltaNetSpec& spec) {
  return {.heads = spec.value_heads * spec.key_dim * spec.value_dim,
          .inputs = (spec.kernel - 1) *
                    (2 * spec.key_heads * spec.key_dim + spec.value_heads * spec.value_dim)};
}

RecurrentState state_of(const StateSpaceSpec& spec) {
  return {
      .heads = spec.heads * spec.head_dim * spec.state,
      .inputs = (spec.kernel - 1) * (spec.heads * spec.head_dim + 2 * spec.groups * spec.state)};
}

RecurrentState state_of(const SelectiveScanSpec& spec) {
  return {.heads = spec.channels * spec.state, .inputs = (spec.kernel - 1) * spec.channels};
}

RecurrentState state_of(const LightningSpec& spec) {
  return {.heads = spec.heads * spec.head_dim * spec.head_dim,
          .inputs = spec.block * 3 * spec.heads * spec.head_dim};
}

RecurrentState state_of(const GatedConvolutionSpec& spec) {
  return {.heads = 0, .inputs = (spec.kernel - 1) * spec.channels};
}

NgramState state_of(const NgramSpec& spec) {
  const std::size_t n = spec.multipliers.size();
  return {.inputs = (spec.kernel - 1) * n * spec.channels, .tokens = n - 1};
}

}  // namespace ingot::inference
