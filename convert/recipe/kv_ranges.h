#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "convert/recipe/source_stamps.h"
#include "formats/base/hash.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Ranges of what enters the caches of keys and values, by attention module `A`, from a file of
/// statistics: `A.k_amax` and `A.v_amax`, F32 with a largest magnitude per head; of latent
/// attention `A.latent_amax` and, where keys are rotated, `A.rope_key_amax`, one F32 each.
class KvRanges {
 public:
  /// Reads a file, or `cache.safetensors` of a directory of statistics. Throws kCorrupt, collected,
  /// for other names, dtypes and shapes, values that are not finite or below zero, half of a pair,
  /// and a file without ranges; also throws as read_safetensors_header does.
  static KvRanges read(const std::filesystem::path& path);

  /// The hash of the file, for the record.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  [[nodiscard]] const StampedFile& file() const { return file_; }

  /// The scales of a model's caches: the largest magnitude / 448 in FP32, over all heads; for
  /// latent attention one for both, over latent and rotated key; 1 for a range of only 0. Throws,
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

  StampedFile file_;
  Hash128 hash_;
  std::map<std::string, Range, std::less<>> ranges_;
};

}  // namespace ingot::convert
