#pragma once

#include <cstddef>
#include <string_view>

#include "inference/matrix.h"

namespace ingot::inference {

/// Throws kNonFinite naming layer, operation and row where a value is NaN or infinite.
void require_finite(const Matrix& values, std::size_t layer, std::string_view operation);

}  // namespace ingot::inference
