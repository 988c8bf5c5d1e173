#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "convert/recipe/source_stamps.h"
#include "convert/recipe/statistics_header.h"
#include "formats/base/hash.h"
#include "formats/storage/encoding.h"

namespace ingot::convert {

/// The values that the input of a linear layer takes; 0 is always within.
struct InputRange {
  float min = 0, max = 0;
  [[nodiscard]] float amax() const { return max > -min ? max : -min; }
  /// The range of both.
  void include(const InputRange& other);
};

/// How a static scheme quantizes a layer's input, as stored.
struct InputScale {
  float scale = 1;
  float offset = 0;  ///< Ascend's asymmetric codes: x_q = round(x / scale + offset)
};

/// Ranges of activations by module, as found by a calibration: a file of activation statistics
/// (docs/formats.md) with `MODULE.input_min` and `MODULE.input_max`, or `MODULE.input_amax` alone,
/// meaning both signs of it; each one finite F32.
class ActivationScales {
 public:
  /// Throws kCorrupt, collected, for what read_statistics_header refuses, values that are not
  /// finite, a minimum above its maximum, half of a pair, an input_amax that is not that of the
  /// pair beside it.
  static ActivationScales read(const std::filesystem::path& path);

  [[nodiscard]] std::optional<InputRange> find(std::string_view module) const;
  /// The hash of the file, for the record.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  [[nodiscard]] const StampedFile& file() const { return file_; }
  [[nodiscard]] const FilledExperts& filled() const { return filled_; }

 private:
  std::map<std::string, InputRange, std::less<>> ranges_;
  StampedFile file_;
  FilledExperts filled_;
  Hash128 hash_;
};

/// The scale of a symmetric input in FP32 with one rounding: amax / 448 for E4M3 codes, / 127 for
/// INT8, / 2688 for NVFP4, or its reciprocal where the dialect's global scales divide; 1 for a
/// range of nothing but 0.
InputScale symmetric_input_scale(formats::CodeKind code, const InputRange& range, bool divides);

/// Ascend's: scale = max((max - min) / 255, 2^-23), offset = round(-min / scale) - 128.
InputScale asymmetric_input_scale(const InputRange& range);

}  // namespace ingot::convert
