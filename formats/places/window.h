#pragma once

#include <cstdint>

namespace ingot::formats {

/// `n` rows or columns of a side, each `step` after the last.
struct Window {
  std::uint64_t first = 0, n = 0, step = 1;
};

/// The slice of a part that a slice of its weight implies.
struct Covered {
  Window units;               ///< elements of the part
  std::uint64_t skipped = 0;  ///< rows of the first that come before those of the window
  std::uint64_t unit = 1;     ///< rows of the window that share an element
  bool is_apart = true;       ///< true: can be a weight by itself (begins a unit, or lies in one)
};

/// With an element for each `unit` (at least 1) rows, or one for all of the side, whose rows are
/// alike. The window is not empty.
constexpr Covered cover(const Window& rows, std::uint64_t unit, std::uint64_t side) {
  if (unit >= side) return {.units = {.n = 1}, .unit = unit};
  if (unit == 1) return {.units = rows};
  const std::uint64_t first = rows.first / unit;
  const std::uint64_t n = (rows.first + (rows.n - 1) * rows.step) / unit - first + 1;
  const std::uint64_t skipped = rows.first % unit / rows.step;
  const bool is_apart = unit % rows.step == 0 && (skipped == 0 || n == 1);
  return {{.first = first, .n = n}, skipped, unit / rows.step, is_apart};
}

}  // namespace ingot::formats
