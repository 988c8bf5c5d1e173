#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint.h"

// Tensors of a model of a known family that no row of the family has. All commands ask here.

namespace ingot::formats {

/// Adds a fault (kUnknownTensor, the list in one) for those that may be weights under other names:
/// - a tensor that config.json promises is missing;
/// - a row has the name in another place: another layer, an expert too many, another config;
/// - one ends as a scale does, and there is no weight for it;
/// - one is a misspelling of a tensor that the family may have in this place and that is not here,
///   or of a scale or another part of a quantized weight;
/// - `cuts_are_known` is false: a shard may hold a slice of it.
/// Those that match a pattern of `allowed` are taken; null: the command has no --allow. Returns a
/// remark for each kind of name that is taken: how many there are, with which share of the bytes,
/// and that they are copied.
std::vector<std::string> judge_unknown(const Checkpoint& checkpoint,
                                       const std::vector<Pattern>* allowed, bool cuts_are_known,
                                       ErrorList& faults);

/// Adds a fault for each that a conversion to another scheme would have to decide about and does
/// not, one for each kind of name: weights with scales, and matrices of 1% of the bytes or more.
void refuse_unknown_weights(const Checkpoint& checkpoint,
                            const std::function<bool(const LogicalTensor&)>& is_decided,
                            ErrorList& faults);

/// The number of logical tensors with the role `unknown`.
std::uint64_t count_unknown(const TensorSource& source);

}  // namespace ingot::formats
