#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/family/cache_scales.h"

// Scales of a quantized cache of keys and values as a checkpoint stores them, in every spelling.

namespace ingot::formats {

/// The file of vLLM 0.4 with a number for each layer, where it is among a model's side files.
inline constexpr std::string_view kCacheScalesFile = "kv_cache_scales.json";

/// A stored scale, or an offset next to one.
struct StoredCacheScale {
  const LogicalTensor* tensor = nullptr;
  const StoredTensor* stored = nullptr;
  CacheScaleName name;
  /// True if it is a scale of this side; one of both is of keys and of values.
  [[nodiscard]] bool is_of(CacheSide side) const {
    const bool is_in_cache = side == CacheSide::kKeys || side == CacheSide::kValues;
    return name.side == side || (name.side == CacheSide::kBoth && is_in_cache);
  }
};
/// By attention module, in the order of names. The source must outlive it.
using StoredCaches = std::map<std::string_view, std::vector<StoredCacheScale>>;
StoredCaches stored_caches(const TensorSource& source);

/// A fault of a stored scale, in words that follow its name.
struct CacheFault {
  const StoredCacheScale* at = nullptr;
  ErrorCode code{};
  std::string message;
};
/// Faults of one module by headers: values without keys, and shapes that are neither one number
/// nor one per head.
std::vector<CacheFault> cache_form_faults(std::span<const StoredCacheScale> scales,
                                          const ModelConfig& config);
/// Faults by values: a number that is not finite or not above zero, and two spellings of one
/// parameter with different numbers. `values[i]`: those of scales[i], empty where they are not
/// here.
std::vector<CacheFault> cache_value_faults(std::span<const StoredCacheScale> scales,
                                           std::span<const std::vector<float>> values);

/// An attention module with a cache of keys and values.
struct CachedModule {
  std::string name;  ///< `model.layers.3.self_attn`
  std::optional<std::uint32_t> layer;
  bool is_latent = false;                ///< one row serves as key and as value
  const LogicalTensor* first = nullptr;  ///< projection that makes the keys, or the row
};
/// Modules of all layers, MTP layers included, by the roles of the family: none in a family without
/// rows. The source must outlive it.
std::vector<CachedModule> cached_modules(const TensorSource& source);

/// The scales of one module's cache: multipliers, one number or one per head; empty: none is
/// stored.
struct CacheScales {
  std::vector<float> keys, values, queries, probabilities;
  bool has_offsets = false;  ///< a bias is subtracted before values are quantized
};
/// The scales that readers of all spellings get, by attention module: keys without values serve
/// both. A config that declares a cache for which nothing is stored means 1 in every module; a
/// kCacheScalesFile counts where no tensor is stored. Throws, collected, for faults of
/// cache_form_faults() and cache_value_faults(), and as reading does.
std::map<std::string, CacheScales> read_cache_scales(const Checkpoint& checkpoint);

/// The scale of each layer in a file of vLLM 0.4, `kv_cache.scaling_factor["<tp
/// rank>"]["<layer>"]`: the largest over the ranks, in FP32. Throws kCorrupt, naming `where`, for
/// another form, and kBadScale for numbers that are not finite or not above zero.
std::map<std::uint32_t, float> legacy_cache_scales(const Json& document, std::string_view where);

}  // namespace ingot::formats
