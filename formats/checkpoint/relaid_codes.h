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
/// `X.scales`, `X.qzeros` and `X.g_idx` become X.weight_packed [N, K/8], X.weight_scale
/// [N, groups], X.weight_zero_point [N/8, groups], X.weight_g_idx [K] and X.weight_shape [2].
/// Nothing is rounded: words are transposed as they are read, zero points where every one is 8 and
/// an order that is none are left out, as the config promises them.
///
/// Reports parts that are missing (kMissingTensor), of another shape or group than the config has
/// it (kShapeMismatch, kMismatch) or dtype (kDtypeMismatch), and leaves out what is there of such a
/// weight; a stored tensor by a name that is given here (kDuplicate). Reading throws kMismatch
/// where a promise of the config does not hold, kUnsupported for a zero point of 16.
void relay_codes(const InputMajorLayout& layout, const RelaidModel& model, ErrorList& faults);

}  // namespace ingot::formats
