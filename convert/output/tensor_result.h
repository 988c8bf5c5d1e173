#pragma once

#include <optional>
#include <vector>

#include "formats/base/hash.h"
#include "formats/records/manifest.h"
#include "quantize/quality.h"

namespace ingot::convert {

/// What is known of one finished tensor: what goes into its record, and what the other members of
/// its group need.
struct ItemRecord {
  std::vector<Hash128> source;  ///< of its stored parts, in their order
  /// Of what was written, by part, and by slice where parts are cut (PartWriter::finish).
  std::vector<std::vector<Hash128>> output;
  /// Of grouped tensors: the reduction over the whole group.
  std::optional<float> amax = {};
  /// Of quantized tensors: what the encoding cost.
  std::optional<quantize::QualitySums> quality = {};
  /// The source's global scale where the output holds its reciprocal.
  std::optional<formats::RecordedGlobal> original_global = {};
  bool inexact_global = false;  ///< ... which does not turn back into it
};

}  // namespace ingot::convert
