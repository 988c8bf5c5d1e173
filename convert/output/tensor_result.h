#pragma once

#include <optional>
#include <vector>

#include "formats/base/hash.h"
#include "formats/records/manifest.h"
#include "quantize/quality.h"

namespace ingot::convert {

/// What is known of one finished tensor: what goes into its record, and what the others of its
/// fused set need.
struct TensorResult {
  std::vector<Hash128> source;  ///< of its stored parts, in their order
  /// Hashes of what was written, by part, and by slice where parts are cut (PartWriter::finish).
  std::vector<std::vector<Hash128>> output;
  /// The amax over the whole fused set.
  std::optional<float> amax = {};
  /// What the encoding cost, where a tensor was quantized.
  std::optional<quantize::QualitySums> quality = {};
  /// The source's global scale where the output holds its reciprocal.
  std::optional<formats::RecordedGlobal> original_global = {};
  bool inexact_global = false;  ///< ... which does not turn back into it
};

}  // namespace ingot::convert
