#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/stored_names.h"
#include "formats/tensor_source.h"

namespace ingot::formats {

/// Stored tensors of a checkpoint, and what its config says of them.
struct RecognitionInput {
  std::span<const StoredTensor> stored;  ///< in source order
  const StoredNames& names;
  std::span<const SourceFile> files;
  std::array<std::uint64_t, 2> fp8_block = {128, 128};  ///< rows, columns
  /// True when the family knows its names: then `X.scale` beside no FP8 weight is a fault, not a
  /// parameter.
  bool names_are_known = true;
  /// False when files could not be read: then a part that is not here is no fault.
  bool is_complete = true;
};

/// Groups stored tensors into logical ones, in source order, without `rule`, `layer` and `expert`.
/// This is the one place where an encoding is recognised: plain tensors, and E4M3 weights with a
/// block scale in F32, BF16 or E8M0 under any of the names `X.weight_scale_inv`, `X.weight_scale`,
/// `X.scale` (`P_scale_inv`, `P_scale` of stacked experts `P`). What cannot be decoded is reported:
/// an FP8 weight without scale or with two, a scale without weight (kMissingTensor, kDuplicate), a
/// scale of the wrong shape or dtype (kShapeMismatch, kDtypeMismatch), packed 4-bit and INT8
/// weights, FP8 of other kinds (kUnsupported).
std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults);

}  // namespace ingot::formats
