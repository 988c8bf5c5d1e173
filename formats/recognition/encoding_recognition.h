#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "formats/storage/stored_names.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// Stored tensors of a checkpoint, and its config's words about them.
struct RecognitionInput {
  std::span<const StoredTensor> stored;  ///< tensors in source order
  const StoredNames& names;
  std::span<const SourceFile> files;
  /// Rows, columns that share a block's scale, as the config claims; headers overrule it.
  std::array<std::uint64_t, 2> block = {128, 128};
  const ModelConfig& config;
  /// Tells which weights are fused in one; null: none are.
  const NameGrammar* grammar = nullptr;
  /// True when the family knows its names: then `X.scale` of a plain weight is a fault, not a
  /// parameter.
  bool names_are_known = true;
  /// False when files could not be read: then a part that is not here is no fault.
  bool is_complete = true;
  /// Tensors, by their places in `stored`, of weights in forms that are not read: each is copied as
  /// it is. Empty: there are none.
  std::vector<bool> is_unread = {};
};

/// Groups stored tensors into logical ones, in source order, without `rule`, `layer` and `expert`.
/// This is the one place where an encoding is recognised. Parts are found by their names in any
/// dialect (part_names.h); the scheme is the row of schemes() that reads the dtype of the codes and
/// the dtype of their scale, and whose groups give the scale its shape: for a weight [..., N, K] a
/// value per block (that of most weights which it fits, of the config's and those of released
/// models: 128, 64 and 32 square, and the same along rows), [..., N, 1] or [..., N] per row, one
/// value per matrix, or one per row and group of columns. INT8 of Ascend may have its scale in
/// deq_scale. Where two rows fit, the one whose scales have a dtype of their own wins, then the
/// first.
///
/// The logical name is `X.weight` and the shape that of the decoded weight, whatever the codes are
/// called and however they are packed. Reports tensors that cannot be decoded: codes that lack a
/// part or have one twice, parts without codes (kMissingTensor, kDuplicate), parts of a wrong shape
/// or dtype (kShapeMismatch, kDtypeMismatch), integers of 4 bits (kUnsupported). FP8 of other kinds
/// than E4M3 and INT8 with zero points come out as is_decoded() (formats/relaid/decoded_values.h),
/// their codes as they are stored. `refused` receives the weights that no scheme fits, with the
/// parts that they have.
std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults,
                                               std::vector<StoredParts>* refused = nullptr);

}  // namespace ingot::formats
