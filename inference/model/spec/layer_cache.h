#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/spec/layer_spec.h"
#include "inference/parallel/rank_view.h"

// The tokens before, as layers keep them.

namespace ingot::inference {

/// Streams of a latent-attention layer in a KvCache, in this order.
inline constexpr std::size_t kLatentStream = 0;
inline constexpr std::size_t kRopeKeyStream = 1;
inline constexpr std::size_t kIndexKeyStream = 2;  ///< keys of the indexer, also of grouped layers
/// Streams of a grouped-query layer.
inline constexpr std::size_t kKeyStream = 0;
inline constexpr std::size_t kValueStream = 1;
/// Streams of a layer with compressed attention, in this order.
inline constexpr std::size_t kEntryStream = 0;       ///< plain values of an entry
inline constexpr std::size_t kEntryRopeStream = 1;   ///< its rotated values
inline constexpr std::size_t kEntryIndexStream = 2;  ///< entries of the indexer

/// The numbers of a cache that quantizes nothing: F32 in profile kF32, else BF16.
KvFormat plain_kv_format(Profile profile);

/// The format of rotated keys, index keys and all else that is never quantized.
KvFormat unquantized(KvFormat format);

/// A stream of one vector per sequence.
CacheStream state_stream(std::size_t values);

/// The streams that a block caches per token. FP8 and INT8
/// quantize the latent (E4M3 per 128 values, INT8 per token) and leave the rope key in BF16; of
/// grouped-query attention every head of keys and values has its scale; of compressed attention the
/// plain values of entries are quantized, FP8 in groups of 64. Index keys are FP8 where the indexer
/// scores with FP8 in this profile, else F32 or BF16. kFp8Static quantizes keys and values of
/// grouped attention under `scales`, and latent and rope key under the one of keys.
std::vector<CacheStream> block_streams(const BlockSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, const StaticScales* scales = nullptr);
/// Returns the streams of a layer: those of its blocks one after the other, and the state of its
/// short convolutions.
std::vector<CacheStream> cache_streams(const ModelSpec& spec, const RankView& rank, Profile profile,
                                       KvFormat format, std::size_t layer,
                                       const StaticScales* scales = nullptr);

/// The columns that a rank convolves of a layer's keys, values, attention output and feed-forward
/// output (LayerSpec::short_convolution): of keys and values those of its heads, of outputs a share
/// of the whole.
std::array<Range, 4> convolved_columns(const ModelSpec& spec, const RankView& rank,
                                       std::size_t layer);

}  // namespace ingot::inference
