#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/storage/stored_names.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// Stored tensors of a checkpoint, and what its config says of them.
struct RecognitionInput {
  std::span<const StoredTensor> stored;  ///< in source order
  const StoredNames& names;
  std::span<const SourceFile> files;
  std::array<std::uint64_t, 2> block = {128, 128};  ///< rows, columns that share a block's scale
  std::string_view quant_method = {};               ///< of config.json, empty without one
  /// True when the family knows its names: then `X.scale` beside no quantized weight is a fault,
  /// not a parameter.
  bool names_are_known = true;
  /// False when files could not be read: then a part that is not here is no fault.
  bool is_complete = true;
};

/// Groups stored tensors into logical ones, in source order, without `rule`, `layer` and `expert`.
/// This is the one place where an encoding is recognised. Parts are found by their names in any
/// dialect (part_names.h); the scheme follows from the dtype of the codes and the dtype and shape
/// of their scales, for a weight [..., N, K]:
///
/// | codes                | scale                              | scheme       |
/// |----------------------|------------------------------------|--------------|
/// | F8_E4M3 [..., N, K]  | a value per block                  | fp8-block    |
/// |                      | [..., N, 1] or [..., N]            | fp8-channel  |
/// |                      | one value per matrix               | fp8-tensor   |
/// |                      | E8M0 (U8 too) [..., N, K/32]       | mxfp8        |
/// | I8 [..., N, K]       | a value per block                  | int8-block   |
/// |                      | [..., N, 1] or [..., N], or deq_scale | int8-channel |
/// | U8, I8 [..., N, K/2] | E8M0 (U8 too) [..., N, K/32]       | mxfp4        |
/// | U8 [..., N, K/2]     | E4M3 [..., N, K/16] and a global   | nvfp4        |
///
/// The logical name is `X.weight` and the shape that of the decoded weight, whatever the codes are
/// called and however they are packed. What cannot be decoded is reported: codes that lack a part
/// or have one twice, parts without codes (kMissingTensor, kDuplicate), parts of a wrong shape or
/// dtype (kShapeMismatch, kDtypeMismatch), integers of 4 bits and FP8 of other kinds
/// (kUnsupported). `refused` receives the weights that no scheme fits, with the parts that they have.
std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults,
                                               std::vector<StoredParts>* refused = nullptr);

}  // namespace ingot::formats
