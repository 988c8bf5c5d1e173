#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/source_stamps.h"
#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/experts/renumbered_names.h"
#include "formats/kept_experts.h"
#include "formats/records/calibration.h"
#include "formats/storage/encoding.h"

// Statistics of activations (docs/formats.md, "Activation statistics").

namespace ingot::convert {

/// Experts that no token of the calibration reached, by layer (`model.layers.3`): their statistics
/// are those of their peers.
using FilledExperts = std::map<std::string, std::vector<std::uint64_t>, std::less<>>;

/// Statistics of activations, of which an option names the directory or the file.
class Statistics {
 public:
  /// The hash of all of them, for the record.
  [[nodiscard]] const Hash128& hash() const { return file_ ? file_->hash() : other_->hash; }
  [[nodiscard]] std::vector<StampedFile> files() const;
  [[nodiscard]] const FilledExperts& filled() const { return filled_; }
  [[nodiscard]] const formats::CalibrationStatistics& file() const { return *file_; }
  /// The statistic of a module; null without one.
  [[nodiscard]] const formats::StatisticTensor* find_tensor(std::string_view module,
                                                            std::string_view ending) const {
    return file_->find(own_name(module), ending);
  }
  /// Lets modules be asked for by their names in `whole`, whose statistics these are, without the
  /// experts that do not stay.
  void keep_experts(const formats::Checkpoint& whole, const formats::KeptExperts& kept);
  /// Throws kMismatch, naming `option`, for a directory that was made from another model.
  void require_made_from(const formats::Checkpoint& source, std::string_view option) const;
  /// Says that one file does not tell which model it was made from; nullopt for a directory.
  [[nodiscard]] std::optional<std::string> warning(std::string_view option) const;

 protected:
  /// The name of a module in the statistics.
  [[nodiscard]] std::string own_name(std::string_view module) const {
    return numbers_ ? numbers_->original(module) : std::string(module);
  }
  /// Throws as CalibrationStatistics::open() does.
  void open(const std::filesystem::path& path);
  /// Reads a file of another program, which has no tensors: there is no file() then. Returns its
  /// text.
  std::string open_other(const std::filesystem::path& path, std::uint64_t most_bytes);
  /// Throws collected errors with the path.
  void throw_if_any(const ErrorList& errors) const;

 private:
  struct Other {
    StampedFile file;
    Hash128 hash;
  };
  std::shared_ptr<const formats::CalibrationStatistics> file_;
  std::optional<Other> other_;  // in its place
  FilledExperts filled_;
  std::optional<formats::ExpertNumbers> numbers_;
};

/// Statistics as a table of one thing that they tell of modules.
template <typename Value>
class StatisticsTable : public Statistics {
 public:
  /// Returns nullopt for modules that the statistics do not tell it of.
  [[nodiscard]] std::optional<Value> find(std::string_view module) const {
    const auto found = values_.find(own_name(module));
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 protected:
  std::map<std::string, Value, std::less<>> values_;
};

/// Number of matrices of a tensor that have inputs of their own: the experts of a stack, else 1.
std::uint64_t input_matrices(const formats::LogicalTensor& tensor);
/// The modules under whose names statistics have the inputs of a matrix: that of the tensor, of an
/// expert in a stack its single_modules(), of another matrix of several `MODULE.1`; empty for a
/// rank's stack.
std::vector<std::string> input_modules(const formats::Checkpoint& source,
                                       const formats::LogicalTensor& tensor, std::uint64_t matrix);
/// The tensor with this ending for the inputs of a matrix: the first that one of its modules has;
/// null without.
const formats::StatisticTensor* input_statistic(const Statistics& statistics,
                                                const formats::Checkpoint& source,
                                                const formats::LogicalTensor& tensor,
                                                std::uint64_t matrix, std::string_view ending);

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
  /// Throws kCorrupt, collected, for faults that open() refuses, values that are not
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
class Importance : public Statistics {
 public:
  /// Looks at every value once. Throws kCorrupt, collected, as open() does and for mean
  /// squares that are negative or not finite. A module has one per column of its weight.
  static Importance read(const std::filesystem::path& path);
};

}  // namespace ingot::convert
