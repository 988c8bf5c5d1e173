#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "convert/recipe/statistics.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Ranges of what enters the caches of keys and values, by attention module `A`: `A.k_amax` and
/// `A.v_amax` per head; of latent attention `A.latent_amax` and, where keys are rotated,
/// `A.rope_key_amax`. Or scales by layer, as vLLM 0.4 takes them from `kv_cache_scales.json`.
class KvRanges : public Statistics {
 public:
  /// Throws kCorrupt, collected, for faults that open() refuses, values that are not finite or
  /// below zero, half of a pair, and statistics without such ranges; of a name in `.json` as
  /// formats::legacy_cache_scales() does.
  static KvRanges read(const std::filesystem::path& path);

  /// The scales of a model's caches: the largest magnitude / 448 in FP32, over all heads; for
  /// latent attention one for both, over latent and rotated key; 1 for a range of only 0. Of scales
  /// by layer the layer's, for keys and values. Throws,
  /// collected, kMissingTensor for main layers without a range, and kMismatch for modules that the
  /// model does not have, unless it `is_part` of one, or that have another kind of cache. `without`
  /// gets MTP layers that have no range: their caches keep scale 1.
  [[nodiscard]] std::map<std::string, formats::CachePair> scales_for(
      const formats::Checkpoint& source, bool is_part, std::vector<std::string>& without) const;

 private:
  struct Range {
    float keys = 0, values = 0;  // of latent attention rotated key and latent
    bool has_keys = false, has_values = false, is_latent = false;
  };

  std::map<std::string, Range, std::less<>> ranges_;
  std::map<std::uint32_t, float> by_layer_;  // scales, in place of ranges
};

}  // namespace ingot::convert
