#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// `; did you mean TENSOR?` for a name that no tensor has, or empty: for patterns, and where no
/// name is near (formats/text/spelling.h).
std::string meant_tensor(std::string_view name, std::span<const LogicalTensor> tensors);

}  // namespace ingot::formats
