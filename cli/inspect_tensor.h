#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "quantize/tensor_statistics.h"

namespace ingot::cli {

/// Statistics over the decoded values of one tensor, read in bands. Nothing when its dtype has no
/// arithmetic here.
std::optional<quantize::TensorStatistics> tensor_statistics(const formats::TensorSource& source,
                                                            const formats::LogicalTensor& tensor,
                                                            std::size_t threads);

/// One tensor: where it stands, and its values.
std::string tensor_text(const formats::Checkpoint& checkpoint, const formats::LogicalTensor& tensor,
                        const std::optional<quantize::TensorStatistics>& statistics);
formats::Json statistics_json(const std::optional<quantize::TensorStatistics>& statistics);

}  // namespace ingot::cli
