#pragma once

#include <memory>
#include <vector>

#include "formats/base/error.h"
#include "formats/dialect/input_major.h"
#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// Stored tensors and the bytes behind them, which both change.
struct RelaidModel {
  std::vector<StoredTensor>& stored;
  std::unique_ptr<StoredBytes>& bytes;
  /// False when files could not be read: then a part that is not here is no fault.
  bool is_complete = true;
};

/// The weights of an AWQ or GPTQ checkpoint as compressed-tensors would store them: `X.qweight`,
/// `X.scales`, `X.qzeros` and `X.g_idx` become X.weight_packed [N, K/8], X.weight_scale [N,
/// groups], X.weight_zero_point [N/8, groups], X.weight_g_idx [K] and X.weight_shape [2]. Nothing
/// is rounded: words are transposed as they are read, zero points where every one is 8 and an order
/// that is none are left out, as the config promises them. Codes of 2 and 3
/// bits take 4 bits, moved so that 8 means zero where no zero points are stored. Weights of 8 bits
/// become INT8: X.weight I8 [N, K], codes less 128, X.weight_scale, and X.weight_shape as a mark
/// that they are packed in the files (is_packed_int8); X.weight_zero_point [N/4, groups] and
/// X.weight_g_idx make is_decoded() of them.
///
/// Reports parts that are missing (kMissingTensor), of another shape or group than the config has
/// it (kShapeMismatch, kMismatch) or dtype (kDtypeMismatch), and leaves such a weight out; also a
/// stored tensor by a name that is given here (kDuplicate). Reading throws kMismatch where a
/// promise of the config does not hold, and kUnsupported for a zero point that codes do not reach.
void relay_codes(const InputMajorLayout& layout, const RelaidModel& model, ErrorList& faults);

/// True if codes only appear to be INT8, and are packed in the files, four to a word.
bool is_packed_int8(const Encoding& encoding);

/// Changes weights that compressed-tensors packs in 8 bits (`num_bits` 8, four to a word) to INT8,
/// as relay_codes() does. False where there are none. Reports packed weights of other than 4 and 8
/// bits (kUnsupported, once for each group of the config) and groups of columns that no scheme has.
bool relay_packed_bytes(const ModelConfig& config, const RelaidModel& model, ErrorList& faults);

}  // namespace ingot::formats
