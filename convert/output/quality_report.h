#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"
#include "quantize/quality.h"

namespace ingot::convert {

/// What quantization cost, from the records of a run.
struct QualityReport {
  struct Row {
    formats::SchemeId scheme{};
    std::string role;
    std::uint64_t n_tensors = 0;
    quantize::QualitySums sums;
  };
  std::vector<Row> rows;  ///< by scheme and role
  struct Worst {
    std::string tensor;
    formats::SchemeId scheme{};
    quantize::QualitySums sums;
  };
  std::vector<Worst> worst;  ///< largest relative error first; none without error

  std::uint64_t exact_blocks = 0;    ///< groups that share a scale, every value kept
  std::uint64_t rounded_blocks = 0;  ///< the others
  /// Tensors that the source held quantized and that were rounded again.
  std::uint64_t rounded_twice = 0;
  std::uint64_t inexact_globals = 0;  ///< reciprocals that do not turn back

  [[nodiscard]] bool empty() const { return rows.empty() && inexact_globals == 0; }
};

/// `records` by item, with the `n_worst` worst tensors. Tensors without error sums (copied, cast)
/// do not count.
QualityReport quality_report(const Plan& plan, const std::vector<TensorResult>& records,
                             std::size_t n_worst);

}  // namespace ingot::convert
