#include "quantize/changes/low_rank.h"

#include "quantize/changes/changed_rows.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

std::vector<float> gaussian(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(LowRank, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(7);
  for (const std::size_t n : {1U, 2U, 3U, 7U, 8U, 9U, 31U, 100U}) {
    for (const std::size_t rank : {0U, 1U, 2U, 16U, 33U}) {
      for (std::size_t n_rows = 1; n_rows <= kLowRankRows; ++n_rows) {
        const std::vector<float> left = gaussian(kLowRankRows * rank + 1, random);
        const std::vector<float> right = gaussian((n + 3) * rank + 1, random);
        const std::vector<float> before = gaussian(kLowRankRows * n, random);
        const auto made = [&](void (*add)(const LowRankRows&)) {
          std::vector<double> out(before.begin(), before.end());
          LowRankRows rows{.n_rows = n_rows,
                           .right = right.data(),
                           .right_stride = n + 3,
                           .rank = rank,
                           .n = n,
                           .factor = 1.0 / 3};
          for (std::size_t r = 0; r < n_rows; ++r) {
            rows.left[r] = left.data() + r * rank;
            rows.out[r] = out.data() + r * n;
          }
          add(rows);
          return out;
        };
        const std::vector<double> expected = made(scalar::add_low_rank);
        for_each_target([&] { EXPECT_EQ(made(add_low_rank), expected) << n << " " << rank; });
      }
    }
  }
}

// Rows and columns in turn, as gate and up of a stack that has both.
TEST(LowRank, ChangesOnlyItsRowsAndColumns) {
  std::mt19937 random(8);
  const RowsChange change{.rows = {.first = 1, .n = 3, .step = 2},
                          .cols = {.first = 2, .n = 4, .step = 3},
                          .left = gaussian(3, random),
                          .right = gaussian(4, random),
                          .rank = 1,
                          .factor = 2};
  constexpr std::size_t kRows = 8, kCols = 16;
  for (const std::size_t first_row : {0U, 1U, 3U}) {
    for (const std::size_t first_col : {0U, 3U, 5U}) {
      std::vector<double> values((kRows - first_row) * (kCols - first_col));
      const WideRows run{.first_row = first_row,
                         .first_col = first_col,
                         .values = {.data = values.data(),
                                    .rows = kRows - first_row,
                                    .cols = kCols - first_col,
                                    .stride = kCols - first_col}};
      add_change(change, run);
      for (std::size_t row = first_row; row < kRows; ++row) {
        for (std::size_t col = first_col; col < kCols; ++col) {
          const bool is_in = row % 2 == 1 && row < 7 && col % 3 == 2 && col < 13;
          const double expected = is_in ? 2.0 * (static_cast<double>(change.left[row / 2]) *
                                                 static_cast<double>(change.right[(col - 2) / 3]))
                                        : 0.0;
          EXPECT_EQ(run.values.row(row - first_row)[col - first_col], expected)
              << row << " " << col;
        }
      }
    }
  }
}

TEST(LowRank, SurvivalIsTheProjectionOnTheWantedChange) {
  const std::vector<float> before = {1, 2, 3, 4}, wanted = {2, 2, 3, 6}, decoded = {2, 2, 4, 4};
  const auto view = [](const std::vector<float>& of) {
    return formats::MatrixView<const float>{.data = of.data(), .rows = 1, .cols = 4, .stride = 4};
  };
  const ChangeSums sums = measure_change(view(before), view(wanted), view(decoded));
  EXPECT_EQ(sums.survival(), 0.2);
  EXPECT_EQ(sums.relative_change(), std::sqrt(5.0 / 30));
  EXPECT_DOUBLE_EQ(sums.cosine(), 1 / std::sqrt(5.0 * 2));
}

}  // namespace
}  // namespace ingot::quantize
