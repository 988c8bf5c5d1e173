#pragma once

#include <memory>
#include <span>
#include <vector>

#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// True if a weight only appears to be plain F32, and the files hold codes with a scale that no
/// scheme here writes (FP8 of other kinds than E4M3, codes of 8 bits with zero points or an order
/// of columns). Its parts are those of the files.
bool is_decoded(const Encoding& encoding);

/// True of those that are FP8: all that have neither zero points nor an order of columns.
bool is_decoded_float8(const Encoding& encoding);

/// True if a weight only appears in its scheme, and is packed or coded otherwise in the files: it
/// is converted, and never copied (is_decoded, is_packed_int8).
bool is_seen_only(const Encoding& encoding);

/// Makes plain F32 of the weights whose encoding is_decoded(), as the recognition of encodings
/// leaves them: with rows and columns that share a scale, which are then 0. Their stored codes are
/// seen as F32, each value code x scale with one FP32 rounding, where codes of 8 bits less 128 are
/// taken with their zero point and the group of their column. NaN and infinite codes stay what they
/// are: a reader refuses them as NaN codes of E4M3. A scale for several rows is seen once for each
/// of them (Encoding::rows_of_scales), and of as many scales of activations the greatest, as
/// engines take it. Reading throws kBadScale for a scale that is not finite and above zero (of
/// INT8: not finite or zero), and kCorrupt for a column of a group that is not there.
void decode_values(std::span<LogicalTensor> tensors, std::vector<StoredTensor>& stored,
                   std::unique_ptr<StoredBytes>& bytes);

}  // namespace ingot::formats
