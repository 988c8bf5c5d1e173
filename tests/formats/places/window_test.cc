#include "formats/places/window.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMost = 16;

/// Calls visit(window, unit, side) for all small ones, whose windows have rows of every residue.
template <typename Visit>
void for_each_window(const Visit& visit) {
  for (std::uint64_t side = 1; side <= kMost; ++side) {
    for (std::uint64_t unit = 1; unit <= side + 1; ++unit) {
      for (std::uint64_t first = 0; first < side; ++first) {
        for (std::uint64_t n = 1; first + n <= side; ++n) visit(Window{first, n}, unit, side);
      }
      for (std::uint64_t step = 2; step <= 4 && side % step == 0; ++step) {
        for (std::uint64_t first = 0; first < step; ++first)
          visit(Window{first, side / step, step}, unit, side);
      }
    }
  }
}

TEST(Window, CoversTheUnitsOfItsRows) {
  for_each_window([](const Window& rows, std::uint64_t unit, std::uint64_t side) {
    std::set<std::uint64_t> needed, covered;
    for (std::uint64_t i = 0; i < rows.n; ++i) needed.insert((rows.first + i * rows.step) / unit);
    const Covered found = cover(rows, unit, side);
    for (std::uint64_t i = 0; i < found.units.n; ++i)
      covered.insert(found.units.first + i * found.units.step);
    // Rows far apart may leave units out.
    if (unit == 1 || unit >= rows.step) {
      EXPECT_EQ(covered, needed);
    }
  });
}

TEST(Window, FindsItsRowsInTheUnits) {
  for_each_window([](const Window& rows, std::uint64_t unit, std::uint64_t side) {
    const Covered found = cover(rows, unit, side);
    if (!found.is_apart && rows.step > 1) return;
    for (std::uint64_t i = 0; i < rows.n; ++i) {
      const std::uint64_t at = found.units.first + (found.skipped + i) / found.unit;
      EXPECT_EQ(unit == 1 ? rows.first + i * rows.step : at, (rows.first + i * rows.step) / unit);
    }
  });
}

TEST(Window, IsApartWhereItsOwnUnitsSuffice) {
  for_each_window([](const Window& rows, std::uint64_t unit, std::uint64_t side) {
    if (unit > 1 && unit < rows.step) return;
    // As a tensor of its own: a unit for each so many rows, from its first on.
    const Covered found = cover(rows, unit, side);
    bool suffices = true;
    for (std::uint64_t i = 0; i < rows.n && unit < side; ++i) {
      const std::uint64_t own = found.units.first + i / found.unit * found.units.step;
      suffices = suffices && own == (rows.first + i * rows.step) / unit;
    }
    if (found.is_apart) {
      EXPECT_TRUE(suffices);
    } else if (rows.step == 1) {
      EXPECT_FALSE(suffices && found.units.n > 1);
    }
  });
}

}  // namespace
}  // namespace ingot::formats
