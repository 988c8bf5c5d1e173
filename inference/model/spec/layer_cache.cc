#include "inference/model/spec/layer_cache.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::inference {

KvFormat unquantized(KvFormat format) {
  return format == KvFormat::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

CacheStream state_stream(std::size_t values) {
  return {.width = values, .is_state = true};
}

KvFormat plain_kv_format(Profile profile) {
  return profile == Profile::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

std::vector<CacheStream> block_streams(const BlockSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, const StaticScales* scales) {
  const auto* mixer = std::get_if<MixerSpec>(&spec.body);
  return mixer != nullptr ? mixer->streams({rank, profile, format, scales})
                          : std::vector<CacheStream>();
}

std::vector<CacheStream> cache_streams(const ModelSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, std::size_t layer,
                                       const StaticScales* scales) {
  std::vector<CacheStream> streams;
  for (const BlockSpec& block : spec.layers[layer].blocks) {
    const auto own = block_streams(block, rank, profile, format, scales);
    streams.insert(streams.end(), own.begin(), own.end());
  }
  if (const auto& ngrams = spec.layers[layer].ngrams) {
    const NgramState state = state_of(*ngrams);
    auto own = std::ranges::find(streams, true, &CacheStream::is_state);
    if (own == streams.end()) own = streams.insert(own, state_stream(0));
    own->width += state.inputs + state.tokens;  // states behind the mixer's
  }
  const std::size_t kernel = spec.layers[layer].short_convolution;
  if (kernel == 0) return streams;
  std::size_t columns = 0;
  for (const Range& convolved : convolved_columns(spec, rank, layer)) columns += convolved.count;
  auto own = std::ranges::find(streams, true, &CacheStream::is_state);
  if (own == streams.end()) own = streams.insert(own, state_stream(0));
  own->width += (kernel - 1) * columns;  // states behind the mixer's
  return streams;
}

std::array<Range, 4> convolved_columns(const ModelSpec& spec, const RankView& rank,
                                       std::size_t layer) {
  const auto* grouped = spec.layers[layer].find<GroupedSpec>();
  const Range hidden = tensor_part(rank, spec.hidden, "columns of short convolutions");
  if (grouped == nullptr) return {Range{}, Range{}, hidden, hidden};  // others convolve their own
  const Range heads = key_head_part(rank, grouped->kv_heads);
  const auto columns = [&](std::size_t width) {
    return Range{heads.first * width, heads.count * width};
  };
  return {columns(grouped->head_dim), columns(grouped->value_dim), hidden, hidden};
}

}  // namespace ingot::inference
