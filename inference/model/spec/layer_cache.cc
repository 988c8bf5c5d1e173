#include "inference/model/spec/layer_cache.h"

#include <algorithm>

#include "formats/base/error.h"

namespace ingot::inference {

namespace {

// DeepSeek-V4's own code has FP8 scales of this many values of an entry.
constexpr std::size_t kEntryGroup = 64;

// The format of rotated keys, index keys and all else that is never quantized.
KvFormat unquantized(KvFormat format) {
  return format == KvFormat::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

CacheStream state_stream(std::size_t values) {
  return {.width = values, .is_state = true};
}

struct StreamsOf {
  const RankView& rank;
  Profile profile;
  KvFormat format;

  std::vector<CacheStream> operator()(const LatentSpec& spec) const {
    const bool has_keys = !spec.keys_of;
    std::vector<CacheStream> streams = {
        {.width = has_keys ? spec.kv_lora : 0,
         .format = format,
         .group = format == KvFormat::kFp8 ? std::size_t{128} : spec.kv_lora},
        {.width = has_keys ? spec.rope_dim : 0,
         .format = unquantized(format),
         .group = spec.rope_dim}};
    if (spec.indexer) add_indexer(*spec.indexer, streams);
    return streams;
  }

  void add_indexer(const IndexerSpec& indexer, std::vector<CacheStream>& streams) const {
    const bool fp8 = profile == Profile::kNative && indexer.hadamard_fp8;
    streams.push_back({.width = indexer.head_dim,
                       .format = fp8 ? KvFormat::kFp8 : unquantized(format),
                       .group = indexer.head_dim,
                       .power_of_two = fp8 && indexer.power_of_two_keys,
                       .every = indexer.pool});
    // Keys of an unfinished pool, and their logits.
    const std::size_t n_values = (indexer.averages ? 1 : 2) * indexer.head_dim;
    if (indexer.pool > 1) streams.push_back(state_stream((indexer.pool - 1) * n_values));
  }

  std::vector<CacheStream> operator()(const GroupedSpec& spec) const {
    const std::size_t heads = key_head_part(rank, spec.kv_heads).count;
    const auto per_head = [&](std::size_t width) {
      return CacheStream{.width = heads * width, .format = format, .group = width};
    };
    std::vector<CacheStream> streams = {per_head(spec.head_dim), per_head(spec.value_dim)};
    if (spec.blocks) {
      const std::size_t width = spec.blocks->head_dim;
      streams.push_back({.width = width, .format = unquantized(format), .group = width});
    }
    if (spec.indexer) add_indexer(*spec.indexer, streams);
    return streams;
  }

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
  requires requires(const Recurrent& spec) { state_of(spec); }
  std::vector<CacheStream> operator()(const Recurrent& spec) const {
    const RecurrentState state = state_of(spec);
    return {state_stream(state.heads + state.inputs)};
  }

  std::vector<CacheStream> operator()(const MlpSpec&) const { return {}; }
  std::vector<CacheStream> operator()(const MixtureSpec&) const { return {}; }
};

}  // namespace

KvFormat plain_kv_format(Profile profile) {
  return profile == Profile::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

std::vector<CacheStream> block_streams(const BlockSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format) {
  return std::visit(StreamsOf{rank, profile, format}, spec.body);
}

std::vector<CacheStream> cache_streams(const ModelSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, std::size_t layer) {
  std::vector<CacheStream> streams;
  for (const BlockSpec& block : spec.layers[layer].blocks) {
    const auto own = block_streams(block, rank, profile, format);
    streams.insert(streams.end(), own.begin(), own.end());
  }
  if (const auto& ngrams = spec.layers[layer].ngrams) {
    const NgramState state = state_of(*ngrams);
    auto own = std::ranges::find(streams, true, &CacheStream::is_state);
    if (own == streams.end()) own = streams.insert(own, state_stream(0));
    own->width += state.inputs + state.tokens;  // behind those of the mixer
  }
  const std::size_t kernel = spec.layers[layer].short_convolution;
  if (kernel == 0) return streams;
  std::size_t columns = 0;
  for (const Range& convolved : convolved_columns(spec, rank, layer)) columns += convolved.count;
  streams.push_back(state_stream((kernel - 1) * columns));
  return streams;
}

std::array<Range, 4> convolved_columns(const ModelSpec& spec, const RankView& rank,
                                       std::size_t layer) {
  const auto* grouped = spec.layers[layer].find<GroupedSpec>();
  INGOT_CHECK(grouped != nullptr);
  const Range heads = key_head_part(rank, grouped->kv_heads);
  const Range hidden = tensor_part(rank, spec.hidden, "columns of short convolutions");
  const auto columns = [&](std::size_t width) {
    return Range{heads.first * width, heads.count * width};
  };
  return {columns(grouped->head_dim), columns(grouped->value_dim), hidden, hidden};
}

}  // namespace ingot::inference
