// The scales that INT8, FP8 and MXFP4 get, against a plain search in double over the candidates of
// docs/formats.md, "Scale search".

#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/code_values.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

constexpr SchemeId kSearched[] = {SchemeId::kInt8Channel, SchemeId::kInt8Block, SchemeId::kFp8Block,
                                  SchemeId::kFp8Channel, SchemeId::kMxfp4};
constexpr EncodeSetup kByAmax{.options = {.search = ScaleSearch::kAmax}};

// The value of the code nearest to a magnitude in units of the scale.
double nearest(SchemeId id, double magnitude) {
  if (id == SchemeId::kMxfp4) return nearest_e2m1(magnitude);
  if (id == SchemeId::kInt8Channel || id == SchemeId::kInt8Block)
    return std::min(std::nearbyint(magnitude), 127.0);
  const auto above =
      std::lower_bound(kE4m3Magnitudes.begin() + 1, kE4m3Magnitudes.end() - 1, magnitude);
  const double upper = *above, lower = *(above - 1);
  return magnitude - lower < upper - magnitude ? lower : upper;
}

std::vector<double> candidates(SchemeId id, double amax) {
  std::vector<double> scales;
  if (id == SchemeId::kMxfp4) {
    int exponent = 0;
    std::frexp(amax, &exponent);  // amax is in [1/2, 1) of it
    return {std::ldexp(1.0, exponent - 3), std::ldexp(1.0, exponent - 2)};
  }
  if (id == SchemeId::kInt8Channel || id == SchemeId::kInt8Block) {
    for (const double top : {127.0, 126.0, 128.0, 130.0})
      scales.push_back(std::max(amax / top, std::ldexp(1.0, -23)));
    return scales;
  }
  const double floor = id == SchemeId::kFp8Block ? 1e-4 : 1e-12;
  for (const double top : {448.0, 416.0, 384.0, 352.0, 320.0, 288.0, 256.0, 240.0})
    scales.push_back(std::max(amax, floor) / top);
  return scales;
}

// A group of an encoded matrix.
struct Group {
  std::size_t row, rows, col, cols;
};

std::vector<Group> groups_of(const Coded& coded) {
  std::vector<Group> groups;
  for (std::size_t r = 0; r < coded.rows; r += coded.block_rows) {
    for (std::size_t c = 0; c < coded.cols; c += coded.block_cols)
      groups.push_back({r, std::min(coded.block_rows, coded.rows - r), c,
                        std::min(coded.block_cols, coded.cols - c)});
  }
  return groups;
}

double error_of(const Matrix& matrix, const Group& group, SchemeId id, double scale,
                const std::vector<float>& importance) {
  double error = 0;
  for (std::size_t r = group.row; r < group.row + group.rows; ++r) {
    for (std::size_t c = group.col; c < group.col + group.cols; ++c) {
      const double magnitude = std::fabs(double{matrix.values[r * matrix.cols + c]});
      const double rest = magnitude - nearest(id, magnitude / scale) * scale;
      error += rest * rest * (importance.empty() ? 1.0 : double{importance[c]});
    }
  }
  return error;
}

double amax_of(const Matrix& matrix, const Group& group) {
  double amax = 0;
  for (std::size_t r = group.row; r < group.row + group.rows; ++r) {
    for (std::size_t c = group.col; c < group.col + group.cols; ++c)
      amax = std::max(amax, std::fabs(double{matrix.values[r * matrix.cols + c]}));
  }
  return amax;
}

// Every group has a candidate, and none that is clearly worse than the best.
void expect_least_errors(SchemeId id, const Matrix& matrix, const EncodeSetup& setup) {
  const Coded coded = encode(id, matrix, setup);
  const std::vector<Group> groups = groups_of(coded);
  ASSERT_EQ(groups.size(), coded.effective.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double amax = amax_of(matrix, groups[g]);
    if (amax == 0) continue;
    const double scale = double{coded.effective[g]};
    double least = INFINITY, nearest_candidate = INFINITY;
    for (const double candidate : candidates(id, amax)) {
      least = std::min(least, error_of(matrix, groups[g], id, candidate, setup.importance));
      nearest_candidate = std::min(nearest_candidate, std::fabs(scale / candidate - 1));
    }
    ASSERT_LT(nearest_candidate, 1e-6) << "group " << g << " has scale " << scale;
    ASSERT_LE(error_of(matrix, groups[g], id, scale, setup.importance), least * (1 + 1e-4))
        << "group " << g;
  }
}

std::vector<float> some_importance(std::size_t cols) {
  std::vector<float> importance(cols);
  for (std::size_t c = 0; c < cols; ++c)
    importance[c] = c % 7 == 0 ? 0.0F : static_cast<float>(1 + c * c % 50) * 3.0F;
  return importance;
}

TEST(ScaleSearch, FindsTheLeastErrorOfItsCandidates) {
  for (const SchemeId id : kSearched) {
    for (const Shape shape : {Shape::kNormal, Shape::kHeavy, Shape::kBimodal}) {
      // Only blocks need as many rows: each candidate of each group is tried in double.
      const bool has_blocks = id == SchemeId::kInt8Block || id == SchemeId::kFp8Block;
      const Matrix matrix =
          random_matrix(has_blocks ? 131 : 19, has_blocks ? 160 : 288, shape, 51, 0.02F);
      for (const bool is_weighted : {false, true}) {
        SCOPED_TRACE(formats::scheme_facts(id).name);
        EncodeSetup setup;
        if (is_weighted) setup.importance = some_importance(matrix.cols);
        expect_least_errors(id, matrix, setup);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(ScaleSearch, HasLessErrorThanAmax) {
  const Matrix matrix = random_matrix(256, 512, Shape::kNormal, 52);
  for (const SchemeId id : kSearched) {
    const double amax = sqnr_db(matrix, decode(encode(id, matrix, kByAmax)));
    const double mse = sqnr_db(matrix, decode(encode(id, matrix)));
    EXPECT_GT(mse, amax + 0.01) << formats::scheme_facts(id).name;
  }
}

TEST(ScaleSearch, EqualImportanceChangesNothing) {
  const Matrix matrix = random_matrix(40, 288, Shape::kHeavy, 53);
  for (const SchemeId id : kSearched) {
    const Coded plain = encode(id, matrix);
    const Coded weighted = encode(id, matrix, {.importance = std::vector<float>(288, 0.3F)});
    EXPECT_TRUE(weighted.scales == plain.scales && weighted.weight == plain.weight);
  }
}

TEST(ScaleSearch, KeepsScalesByAmaxThatHoldEveryValue) {
  const Matrix matrix = random_matrix(130, 288, Shape::kHeavy, 54, 0.3F);
  for (const SchemeId id : kSearched) {
    const Matrix values = decode(encode(id, matrix, kByAmax));
    const Coded amax = encode(id, values, kByAmax), mse = encode(id, values);
    const Matrix again = decode(amax);
    std::size_t n_held = 0;
    const std::vector<Group> groups = groups_of(amax);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      bool is_held = true;
      for (std::size_t r = groups[g].row; r < groups[g].row + groups[g].rows; ++r) {
        for (std::size_t c = groups[g].col; c < groups[g].col + groups[g].cols; ++c)
          is_held = is_held && again.values[r * 288 + c] == values.values[r * 288 + c];
      }
      if (!is_held) continue;
      ++n_held;
      EXPECT_EQ(bits_of(mse.effective[g]), bits_of(amax.effective[g])) << g;
    }
    EXPECT_GT(n_held, groups.size() / 4) << formats::scheme_facts(id).name;
  }
}

TEST(ScaleSearch, FindsPowersOfTwoUnderCodesOfFp8) {
  // As an FP8 model that was cast to BF16: any largest code of an octave is tried.
  for (int largest = 0x77; largest <= 0x7E; ++largest) {
    Matrix matrix(2, 128);
    for (std::size_t i = 0; i < 256; ++i) {
      const int code =
          i == 9 ? largest : static_cast<int>(i * 37 % static_cast<std::size_t>(largest));
      matrix.values[i] = std::ldexp(static_cast<float>(e4m3(code)), -11);
    }
    EXPECT_EQ(encode(SchemeId::kFp8Block, matrix).effective.at(0), 0x1p-11F) << largest;
  }
}

TEST(ScaleSearch, LeavesPowersOfTwoOfTheGridAlone) {
  const Matrix matrix = random_matrix(130, 288, Shape::kNormal, 55);
  for (const SchemeId id : {SchemeId::kFp8Block, SchemeId::kFp8Channel}) {
    EncodeSetup setup{.options = {.fp8_grid = Fp8Grid::kUe8m0}};
    EXPECT_FALSE(can_search(*find_scheme(id), setup.options));
    const Coded mse = encode(id, matrix, setup);
    setup.options.search = ScaleSearch::kAmax;
    EXPECT_TRUE(encode(id, matrix, setup).scales == mse.scales);
  }
}

TEST(ScaleSearch, OtherSearchesAreMseWhereASchemeLacksThem) {
  for (const SchemeId id : kSearched) {
    for (const ScaleSearch search : {ScaleSearch::kFourOverSix, ScaleSearch::kSigned})
      EXPECT_EQ(options_for(*find_scheme(id), {.search = search}).search, ScaleSearch::kMse);
  }
  const EncodeOptions is_signed{.search = ScaleSearch::kSigned};
  EXPECT_EQ(options_for(*find_scheme(SchemeId::kNvfp4), is_signed).search, ScaleSearch::kMse);
  EXPECT_EQ(options_for(*find_scheme(SchemeId::kInt4Group), is_signed).search,
            ScaleSearch::kSigned);
}

}  // namespace
}  // namespace ingot::quantize
