#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "quantize/tensor_statistics.h"

// Tensors as `ingot inspect` shows them.

namespace ingot::library {

/// Indices of the tensors that a selector (docs/recipes.md) matches; all for an empty text. Throws
/// kNotFound where none does.
std::vector<std::size_t> matching_tensors(const formats::Checkpoint& checkpoint,
                                          const std::string& selector);

/// A warning that a selector names layers which the model lacks (Selector::excess); empty without.
std::string excess_of(const formats::Checkpoint& checkpoint, const std::string& selector);

/// Statistics over the decoded values of one tensor. Nullopt when its dtype has no arithmetic here.
std::optional<quantize::TensorStatistics> tensor_statistics(const formats::TensorSource& source,
                                                            const formats::LogicalTensor& tensor,
                                                            std::size_t threads);

/// Values by their power of two, the largest first. Subnormal values are below the smallest power
/// that a normal F32 has.
formats::Json histogram_rows(const quantize::TensorStatistics& statistics);
/// Null without statistics.
formats::Json statistics_json(const std::optional<quantize::TensorStatistics>& statistics);
/// A weight and its parts.
formats::Json tensor_json(const formats::Checkpoint& checkpoint,
                          const formats::LogicalTensor& tensor);

/// The keys of inspect in its document (Answer): the one tensor that `selector` matches,
/// with its values, unless `lists`; several, or with `lists`, a list; without a selector a summary.
formats::Json inspect_json(const formats::Checkpoint& checkpoint, const std::string& selector,
                           bool lists, std::size_t threads);

}  // namespace ingot::library
