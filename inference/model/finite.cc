#include "inference/model/finite.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {

void require_finite(const Matrix& values, std::size_t layer, std::string_view operation) {
  for (std::size_t r = 0; r < values.rows(); ++r) {
    const auto row = values.row(r);
    const bool bad = std::any_of(row.begin(), row.end(), [](float value) {
      return (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) == 0x7F800000U;
    });
    if (bad) {
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("layer {}: {} of row {} holds NaN or infinite values (a damaged "
                              "weight or scale? see ingot check --deep)",
                              layer, operation, r));
    }
  }
}

}  // namespace ingot::inference
