#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/source_stamps.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/storage/encoding.h"

// Files of activation statistics (docs/formats.md, "Activation statistics").

namespace ingot::convert {

/// Experts that no token of the calibration reached, by layer (`model.layers.3`): their statistics
/// are those of their peers.
using FilledExperts = std::map<std::string, std::vector<std::uint64_t>, std::less<>>;

/// The place of a tensor's values in such a file.
struct StatisticPlace {
  std::uint64_t offset = 0;  ///< absolute
  std::uint64_t count = 0;   ///< number of F32 values
};

/// Statistics in such a file about the input of one module.
struct ModuleStatistics {
  std::optional<StatisticPlace> min, max, amax, mean_square;
};

/// A file of statistics: opened, its header read, and of its values only expert_tokens.
class StatisticsFile {
 public:
  /// The hash of the file, for the record.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  [[nodiscard]] StampedFile file() const { return {file_.path(), stamp_}; }
  [[nodiscard]] const FilledExperts& filled() const { return filled_; }
  /// Values of the file. Safe from many threads.
  [[nodiscard]] std::vector<float> values(const StatisticPlace& place) const;

 protected:
  /// Calls take(module, statistics) for every module. Throws kCorrupt, collected, for other names,
  /// dtypes or shapes, for a negative number of tokens, and for errors of `take`; also throws as
  /// read_safetensors_header does.
  void open(const std::filesystem::path& path,
            const std::function<void(const std::string&, const ModuleStatistics&)>& take);

 private:
  Fd file_;
  FileStamp stamp_;
  FilledExperts filled_;
  Hash128 hash_;
};

/// Such a file as a table of one thing that it tells of modules.
template <typename Value>
class StatisticsTable : public StatisticsFile {
 public:
  /// Returns nullopt for modules that the file does not tell it of.
  [[nodiscard]] std::optional<Value> find(std::string_view module) const {
    const auto found = values_.find(module);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 protected:
  std::map<std::string, Value, std::less<>> values_;
};

/// The values that the input of a linear layer takes; 0 is always within.
struct InputRange {
  float min = 0, max = 0;
  [[nodiscard]] float amax() const { return max > -min ? max : -min; }
  /// Widens this range to include the other.
  void include(const InputRange& other);
};

/// How a static scheme quantizes a layer's input, as stored.
struct InputScale {
  float scale = 1;
  float offset = 0;  ///< Ascend's asymmetric codes: x_q = round(x / scale + offset)
};

/// Ranges of activations by module, as found by a calibration: a file of activation statistics
/// (docs/formats.md) with `MODULE.input_min` and `MODULE.input_max`, or only `MODULE.input_amax`,
/// meaning both signs of it; each one finite F32.
class ActivationScales : public StatisticsTable<InputRange> {
 public:
  /// Throws kCorrupt, collected, for faults that StatisticsFile refuses, values that are not
  /// finite, a minimum above its maximum, half of a pair, and an input_amax that is not that of its
  /// pair.
  static ActivationScales read(const std::filesystem::path& path);
};

/// The scale of a symmetric input in FP32 with one rounding: amax / 448 for E4M3 codes, / 127 for
/// INT8, / 2688 for NVFP4, or its reciprocal where the dialect's global scales divide; 1 for a
/// range of only 0.
InputScale symmetric_input_scale(formats::CodeKind code, const InputRange& range, bool divides);

/// Ascend's: scale = max((max - min) / 255, 2^-23), offset = round(-min / scale) - 128.
InputScale asymmetric_input_scale(const InputRange& range);

/// How much the columns of weights matter: mean squares of the inputs that they are multiplied
/// with, from a file of activation statistics. The values stay in the file, which for a large model
/// is larger than memory should be.
class Importance : public StatisticsTable<StatisticPlace> {
 public:
  /// Looks at every value once. Throws kCorrupt, collected, as StatisticsFile does and for mean
  /// squares that are negative or not finite. A module has one per column of its weight.
  static Importance read(const std::filesystem::path& path);
};

}  // namespace ingot::convert
