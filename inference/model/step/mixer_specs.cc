#include "inference/model/step/mixer_specs.h"

#include <algorithm>

namespace ingot::inference {

namespace {

// DeepSeek-V4's own code has FP8 scales of this many values of an entry.
constexpr std::size_t kEntryGroup = 64;

CacheStream state_stream(std::size_t values) {
  return {.width = values, .is_state = true};
}

struct StreamsOf {
  KvFormat format;

  std::vector<CacheStream> operator()(const ModelAttention&) const { return {}; }
  std::vector<CacheStream> operator()(const NoMixer&) const { return {}; }

  std::vector<CacheStream> operator()(const CompressedSpec& spec) const {
    std::vector<CacheStream> streams;
    if (spec.compressor) {
      const std::size_t every = spec.compressor->ratio, plain = spec.head_dim - spec.rope_dim;
      const KvFormat whole = unquantized(format);
      streams = {{.width = plain,
                  .format = format,
                  .group = format == KvFormat::kFp8 ? kEntryGroup : plain,
                  .every = every},
                 {.width = spec.rope_dim, .format = whole, .every = every}};
      if (spec.topk > 0) {
        streams.push_back({.width = spec.index_head_dim, .format = whole, .every = every});
      }
    }
    const CompressedState state = state_of(spec);
    streams.push_back(state_stream(state.keys + state.windows + state.index_windows));
    return streams;
  }

  template <typename Recurrent>
  std::vector<CacheStream> operator()(const Recurrent& spec) const {
    const RecurrentState state = state_of(spec);
    return {state_stream(state.heads + state.inputs)};
  }
};

}  // namespace

KvFormat unquantized(KvFormat format) {
  return format == KvFormat::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

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

std::vector<CacheStream> mixer_streams(const MixerSpec& spec, KvFormat format) {
  return std::visit(StreamsOf{format}, spec);
}

}  // namespace ingot::inference
