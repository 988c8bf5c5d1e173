#include "formats/places/nest.h"

#include "formats/base/error.h"
#include "formats/places/window.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using Bytes = std::vector<std::byte>;

/// Pieces of bytes that all differ from those around them.
std::vector<Bytes> some_pieces(std::uint32_t n, std::uint64_t n_bytes) {
  std::mt19937 random(n);
  std::vector<Bytes> pieces(n, Bytes(n_bytes));
  for (Bytes& piece : pieces)
    for (std::byte& byte : piece) byte = static_cast<std::byte>(random());
  return pieces;
}

/// The whole, unit by unit: the specification.
Bytes gathered_by_units(std::uint32_t bits, const std::vector<Step>& steps,
                        const std::vector<Bytes>& pieces) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> units = {{0, 0}};
  for (const Step& step : steps) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> next;
    for (const auto& [piece, at] : units)
      for (std::uint64_t i = 0; i < step.n; ++i)
        next.emplace_back(piece + i * step.pieces, at + i * step.stride);
    units = std::move(next);
  }
  Bytes whole(units.size() * bits / 8);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto& [piece, at] = units[i];
    if (bits == 4) {
      const std::byte code = (pieces[piece].at(at / 2) >> (4 * (at % 2))) & std::byte{15};
      whole[i / 2] |= code << (4 * (i % 2));
    } else {
      std::copy_n(&pieces[piece].at(at * bits / 8), bits / 8, &whole[i * bits / 8]);
    }
  }
  return whole;
}

Bytes gathered(const Nest& nest, const std::vector<Bytes>& pieces, std::uint64_t begin,
               std::uint64_t end) {
  Bytes out(end - begin, std::byte{0xEE});
  nest.gather(begin, out,
              [&](std::uint32_t piece, std::uint64_t offset, std::span<std::byte> bytes) {
                ASSERT_LE(offset + bytes.size(), pieces.at(piece).size());
                std::copy_n(&pieces[piece][offset], bytes.size(), bytes.begin());
              });
  return out;
}

void expect_as_by_units(std::uint32_t bits, const std::vector<Step>& steps, std::mt19937& random) {
  std::uint64_t extent = 1;
  std::uint32_t n_pieces = 1;
  for (const Step& step : steps) {
    extent += (step.n - 1) * step.stride;
    n_pieces += static_cast<std::uint32_t>(step.n - 1) * step.pieces;
  }
  const auto pieces = some_pieces(n_pieces, (extent * bits + 7) / 8);
  const Bytes whole = gathered_by_units(bits, steps, pieces);
  const Nest nest(bits, steps);
  ASSERT_EQ(nest.n_bytes(), whole.size());
  EXPECT_EQ(gathered(nest, pieces, 0, whole.size()), whole);
  for (int i = 0; i < 8; ++i) {
    std::uint64_t begin = random() % (whole.size() + 1), end = random() % (whole.size() + 1);
    if (begin > end) std::swap(begin, end);
    const auto at = whole.begin();
    EXPECT_EQ(gathered(nest, pieces, begin, end),
              Bytes(at + static_cast<std::ptrdiff_t>(begin), at + static_cast<std::ptrdiff_t>(end)))
        << begin << " to " << end;
  }
}

TEST(Nest, AnyOrderOfSidesIsAsByUnits) {
  std::mt19937 random(5);
  constexpr std::array<std::uint32_t, 5> kBits = {8, 16, 32, 64, 24};
  for (int round = 0; round < 600; ++round) {
    // A dense array of some sides, of which slices are taken, in any order.
    std::vector<Step> steps;
    std::uint64_t stride = 1;
    for (std::size_t side = 0, n_sides = 1 + random() % 4; side < n_sides; ++side) {
      const std::uint64_t n = 1 + random() % 9, every = 1 + random() % 3;
      steps.push_back({.n = n, .stride = stride * every});
      stride *= n * every + random() % 2;
    }
    if (random() % 2 == 0) steps.push_back({.n = 1 + random() % 3, .pieces = 2});
    if (random() % 2 == 0) steps.push_back({.n = 2, .pieces = 1});
    std::ranges::shuffle(steps, random);
    expect_as_by_units(kBits.at(random() % kBits.size()), steps, random);
  }
}

TEST(Nest, TurnedNibblesAreAsByUnits) {
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t rows = 2 * (1 + random() % 20), cols = 2 * (1 + random() % 20);
    const std::uint64_t stacked = 1 + random() % 3;
    expect_as_by_units(4,
                       {{.n = stacked, .stride = rows * cols},
                        {.n = rows, .stride = 1},
                        {.n = cols, .stride = rows}},
                       random);
  }
}

TEST(Nest, InterleavedWordsAreAsByUnits) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t words = 1 + random() % 5, cols = 2 * (1 + random() % 20);
    expect_as_by_units(4,
                       {{.n = words, .stride = 8},
                        {.n = 4, .stride = 1},
                        {.n = 2, .stride = 4},
                        {.n = cols, .stride = 8 * words}},
                       random);
  }
}

TEST(Nest, BlocksAndGapsAreAsByUnits) {
  std::mt19937 random(8);
  // More than one block; gaps that are read, and gaps that are not.
  expect_as_by_units(64, {{.n = 700, .stride = 1}, {.n = 800, .stride = 701}}, random);
  expect_as_by_units(
      8, {{.n = 70, .stride = 50000}, {.n = 3, .stride = 9000}, {.n = 90, .stride = 1}}, random);
  expect_as_by_units(4, {{.n = 16, .stride = 1}, {.n = 40, .stride = 40000}}, random);
  expect_as_by_units(32, {{.n = 9, .stride = 100}, {.n = 2, .pieces = 1}, {.n = 100, .stride = 1}},
                     random);
}

TEST(Nest, RangesAreReadOnceAndExactly) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reads;
  const auto note = [&](std::uint32_t piece, std::uint64_t offset, std::span<std::byte> bytes) {
    reads.emplace_back(100 * piece + offset, bytes.size());
  };
  Bytes out(60);
  const Nest stack(16, {{.n = 3, .pieces = 1}, {.n = 4, .stride = 5}, {.n = 5, .stride = 1}});
  stack.gather(30, out, note);
  EXPECT_EQ(reads, (decltype(reads){{30, 10}, {100, 40}, {200, 10}}));
}

TEST(Nest, ReadsBeyondTheWholeAreRefused) {
  const Nest nest(8, {{.n = 4, .stride = 1}});
  Bytes out(3);
  EXPECT_THROW(nest.gather(2, out, [](auto...) {}), Error);
}

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
    // A tensor of its own has a unit for every `unit` rows, counted from its first row.
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
