#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/plan/plan.h"
#include "formats/base/hash.h"
#include "formats/records/manifest.h"
#include "quantize/changes/changed_rows.h"
#include "quantize/quality.h"

namespace ingot::convert {

/// The results for one finished tensor: for its record, and for the others of its fused set.
struct TensorResult {
  std::vector<Hash128> source;  ///< hashes of its stored parts, in their order
  /// Hashes of the written bytes, by part, and by slice where parts are cut (PartWriter::finish).
  std::vector<std::vector<Hash128>> output;
  /// The amax over the whole fused set.
  std::optional<float> amax = {};
  /// The error of the encoding, where a tensor was quantized.
  std::optional<quantize::QualitySums> quality = {};
  /// The error as a record has it, for a tensor that was taken over from another output.
  std::optional<formats::RecordedError> recorded_error = {};
  /// The source's global scale where the output holds its reciprocal.
  std::optional<formats::RecordedGlobal> original_global = {};
  /// The change of its values, where they change.
  std::optional<quantize::ChangeSums> change = {};
  bool keeps_globals = false;   ///< its fused set kept the global scales of the source
  bool keeps_codes = false;     ///< its codes are those of the source
  bool inexact_global = false;  ///< ... whose reciprocal is another number
  bool carries_errors = false;  ///< errors of columns were carried on (--gptq)
};

/// The record of a logical tensor, without its stored tensors: names, action, schemes, error.
formats::TensorRecord record_of(const Plan& plan, const PlannedTensor& planned,
                                const TensorResult& done);

/// The stored tensors that a record's tensor was read from.
std::vector<formats::TensorHash> source_hashes(const Plan& plan, const PlannedTensor& planned,
                                               const TensorResult& done);

/// The stored tensor that a slice of a part is, in the file at `path` of its record.
formats::TensorHash output_hash(const Plan& plan, const PlannedTensor& planned, std::size_t part,
                                const PlannedSlice& slice, const TensorResult& done,
                                std::string file);

/// The errors of quantization, from the records of a run.
struct QualityReport {
  struct Row {
    formats::SchemeId scheme{};
    std::string role;
    std::uint64_t n_tensors = 0;
    quantize::QualitySums sums;
  };
  std::vector<Row> rows;  ///< rows, one per scheme and role
  struct Worst {
    std::string tensor;
    formats::SchemeId scheme{};
    quantize::QualitySums sums;
  };
  std::vector<Worst> worst;  ///< largest relative error first; none without error

  std::uint64_t exact_blocks = 0;    ///< groups that share a scale, every value kept
  std::uint64_t rounded_blocks = 0;  ///< groups in which a value was rounded
  /// Tensors that the source held quantized and that were rounded again.
  std::uint64_t rounded_twice = 0;
  std::uint64_t inexact_globals = 0;  ///< reciprocals that do not turn back

  /// Tensors that --gptq rounded plainly, as the moments of their inputs are not positive definite.
  std::vector<std::string> indefinite;

  [[nodiscard]] bool empty() const {
    return rows.empty() && inexact_globals == 0 && indefinite.empty();
  }
};

/// How much of the changes of values is left after rounding, from the records of a run.
struct ChangeReport {
  struct Row {
    formats::SchemeId scheme{};
    std::string name;  ///< role, or tensor
    std::uint64_t n_tensors = 0;
    quantize::ChangeSums sums;
  };
  std::vector<Row> roles;    ///< rows, one per scheme and role
  std::vector<Row> tensors;  ///< every tensor that changes; that of the smallest share first
  quantize::ChangeSums sums;
  /// Tensors that do not change, but were encoded again under a scale that they share.
  std::vector<std::string> encoded_again;
};
ChangeReport change_report(const Plan& plan, const std::vector<TensorResult>& records);

/// `records` by item, with the `n_worst` worst tensors. Tensors without error sums (copied, cast)
/// do not count.
QualityReport quality_report(const Plan& plan, const std::vector<TensorResult>& records,
                             std::size_t n_worst);

}  // namespace ingot::convert
