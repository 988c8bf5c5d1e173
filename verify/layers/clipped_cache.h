#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/container/tensor.h"
#include "inference/model/spec/layer_cache.h"
#include "inference/model/spec/layer_spec.h"

namespace ingot::verify {

/// Values of a layer's cache in E4M3 under one scale.
struct ScaledCodes {
  /// Values that are cut off: farther than half a step beyond the largest code, 448 scales.
  std::uint64_t clipped = 0;
  double error2 = 0;  ///< sum of squared errors
  friend bool operator==(const ScaledCodes&, const ScaledCodes&) = default;
};

/// One kind of vectors that a layer caches, under the scales that the checkpoint stores for it and
/// under 1, which engines take where they find none.
struct ClippedCache {
  std::string_view of;  ///< "keys", "values", "latents", "rope keys"
  std::uint64_t values = 0;
  double source2 = 0;  ///< sum of squared values
  ScaledCodes stored, at_one;

  [[nodiscard]] double clipped(const ScaledCodes& codes) const;  ///< part of the values
  [[nodiscard]] double relative_error(const ScaledCodes& codes) const;
  void add(const ClippedCache& other);
  friend bool operator==(const ClippedCache&, const ClippedCache&) = default;
};

/// Looks at what attention caches, in a model that stores scales for an FP8 cache.
class CacheScaleCheck {
 public:
  /// Sees nothing of a model that neither stores scales nor declares a cache, and of modules
  /// without any; an offset next to a scale is left out. Throws as formats::read_cache_scales()
  /// does.
  CacheScaleCheck(const formats::Checkpoint& model, const inference::ModelSpec& spec);

  /// Begins a layer, of which rows from `first_row` on count.
  void begin(std::size_t layer, std::size_t first_row);
  /// Sees vectors as inference::Taps::cache shows them.
  void see(std::size_t first_stream, std::size_t stream, formats::MatrixView<const float> values);
  /// Figures of the layer, empty where it has no scales.
  [[nodiscard]] const std::vector<ClippedCache>& figures() const { return figures_; }

 private:
  struct Kind {
    inference::CacheStream stream;  // with the stored scales
    std::string_view of;
    std::size_t number = 0;  // among the layer's streams
  };
  std::vector<std::vector<Kind>> layers_;
  std::size_t layer_ = 0, first_row_ = 0;
  std::vector<ClippedCache> figures_;
};

}  // namespace ingot::verify
