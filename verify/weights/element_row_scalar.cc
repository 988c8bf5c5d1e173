#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "verify/weights/element_row.h"

namespace ingot::verify::scalar {
namespace {

/// One element's counts and largest errors, under a RowPiece's `inverse` and `limit`.
void look_at(float source, float output, float inverse, float limit, const StepGrid& grid,
             RowSums& sums) {
  const float distance = std::fabs(output - source);
  const float magnitude = std::fabs(source);
  const float stored = std::fabs(output);
  sums.max_error = std::max(sums.max_error, distance);
  sums.exact += distance == 0 ? 1 : 0;
  sums.zeroed += output == 0 && distance != 0 ? 1 : 0;
  if (magnitude >= kLeastRelative)
    sums.max_relative = std::max(sums.max_relative, distance / magnitude);
  const float code = std::min(magnitude, stored) * inverse;
  const float power =
      std::max(std::bit_cast<float>(std::bit_cast<std::uint32_t>(code) & 0x7F800000U), grid.floor);
  if (!(distance > power * limit)) return;
  const bool is_beyond = stored * inverse >= grid.largest * (1 - 0x1p-12F) && magnitude > stored &&
                         std::signbit(source) == std::signbit(output);
  ++(is_beyond ? sums.saturated : sums.misrounded);
}

}  // namespace

void compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  using Lanes = std::array<double, kRowStep>;
  using Halves = std::array<float, kRowStep>;
  Lanes error{}, error2{}, source2{}, cross{};
  for (std::size_t begin = 0; begin < piece.n; begin += kRowUnit) {
    Halves unit_error{}, unit_error2{}, unit_source2{}, unit_cross{};
    for (std::size_t c = begin; c < std::min(begin + kRowUnit, piece.n); ++c) {
      const float source = piece.source[c];
      const float difference = piece.output[c] - source;
      const std::size_t lane = c % kRowStep;
      unit_error[lane] += difference;
      unit_error2[lane] += difference * difference;
      unit_source2[lane] += source * source;
      unit_cross[lane] += source * difference;
      look_at(source, piece.output[c], piece.inverse[c / kRowStep], piece.limit[c / kRowStep], grid,
              sums);
    }
    for (std::size_t lane = 0; lane < kRowStep; ++lane) {
      error[lane] += static_cast<double>(unit_error[lane]);
      error2[lane] += static_cast<double>(unit_error2[lane]);
      source2[lane] += static_cast<double>(unit_source2[lane]);
      cross[lane] += static_cast<double>(unit_cross[lane]);
    }
  }
  sums.error += fold_lanes(error.data());
  sums.error2 += fold_lanes(error2.data());
  sums.source2 += fold_lanes(source2.data());
  sums.cross += fold_lanes(cross.data());
}

}  // namespace ingot::verify::scalar
