// The scale search against a plain second implementation: all 126 codes, in double precision.

#include "formats/checkpoint/checkpoint.h"
#include "formats/storage/block_scales.h"
#include "tests/quantize/code_values.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

double least_error(const float* block, double global) {
  std::array<double, 16> magnitudes{};
  for (std::size_t i = 0; i < 16; ++i) magnitudes[i] = std::fabs(static_cast<double>(block[i]));
  const double amax = *std::ranges::max_element(magnitudes);
  double least = HUGE_VAL;
  for (int code = 0x7E; code > 0; --code) {
    const double scale = e4m3(code) * global;
    const double clipped = amax - 6 * scale;
    if (clipped > 0 && clipped * clipped >= least) break;  // and still more under smaller scales
    double error = 0;
    for (std::size_t i = 0; i < 16 && error < least; ++i) {
      const double rest = magnitudes[i] - nearest_e2m1(magnitudes[i] / scale) * scale;
      error += rest * rest;
    }
    least = std::min(least, error);
  }
  return least;
}

std::vector<double> errors_of_blocks(const Matrix& values, const Matrix& decoded) {
  std::vector<double> errors(values.values.size() / 16);
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double error =
        static_cast<double>(values.values[i]) - static_cast<double>(decoded.values[i]);
    errors[i / 16] += error * error;
  }
  return errors;
}

std::vector<double> errors_by(ScaleSearch search, const Matrix& matrix, float global,
                              bool divides) {
  const Coded coded = encode(SchemeId::kNvfp4, matrix,
                             {.options = {.search = search}, .divides = divides, .global = global});
  return errors_of_blocks(matrix, decode(coded));
}

struct Case {
  const char* name;
  Shape shape;
  float scale;
};
constexpr Case kCases[] = {{"heavy", Shape::kHeavy, 1.0F}, {"tiny", Shape::kNormal, 1e-30F}};
constexpr Case kSlowCases[] = {{"normal", Shape::kNormal, 0.02F},
                               {"bimodal", Shape::kBimodal, 3.0F}};

class Nvfp4Search : public ::testing::TestWithParam<Case> {};

void expect_best_of_all_codes(const Matrix& matrix) {
  for (const bool divides : {false, true}) {
    const float global =
        find_scheme(SchemeId::kNvfp4)->global(largest_magnitude(matrix.values), {}, divides);
    const double multiplier =
        divides ? 1 / static_cast<double>(global) : static_cast<double>(global);
    const std::vector<double> errors = errors_by(ScaleSearch::kMse, matrix, global, divides);
    std::size_t worse = 0;
    double total = 0;
    for (std::size_t b = 0; b < errors.size(); ++b) {
      const double least = least_error(matrix.values.data() + b * 16, multiplier);
      total += least;
      if (errors[b] > least * (1 + 0x1p-16)) ++worse;
    }
    EXPECT_LE(static_cast<double>(worse), 1e-4 * static_cast<double>(errors.size()));
    EXPECT_LE(sum_of(errors), total * (1 + 1e-5));
  }
}

TEST_P(Nvfp4Search, MseIsNearTheBestOfAllCodes) {
  expect_best_of_all_codes(random_matrix(64, 2048, GetParam().shape, 77, GetParam().scale));
}

// Trained weights, as they come from FP8 blocks and as a cast rounds them.
TEST(Nvfp4SearchOnRealWeights, MseIsNearTheBestOfAllCodes) {
  const auto source =
      formats::Checkpoint::open(std::string(INGOT_SOURCE_DIR) + "/examples/tiny-v32");
  std::size_t n_weights = 0;
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block || n_weights == 2) continue;
    if (tensor.rule->role != formats::Role::kExpertDown && tensor.layer != 0U) continue;
    ++n_weights;
    Matrix matrix(tensor.shape[0], tensor.shape[1]);
    std::vector<std::byte> codes(matrix.values.size());
    source.read(tensor.encoding.stored.weight(), 0, codes);
    const std::vector<float> scales = formats::read_block_scales(source, tensor);
    decode({.scheme = SchemeId::kFp8Block,
            .codes = codes.data(),
            .rows = matrix.rows,
            .cols = matrix.cols,
            .row_bytes = matrix.cols,
            .scales = scales,
            .rows_per_matrix = matrix.rows,
            .scale_cols = (matrix.cols + 127) / 128,
            .block_rows = 128,
            .block_cols = 128},
           matrix.mutable_view());
    SCOPED_TRACE(tensor.name);
    expect_best_of_all_codes(matrix);
  }
  EXPECT_EQ(n_weights, 2U);
}

TEST_P(Nvfp4Search, MoreSearchIsNeverWorse) {
  const Matrix matrix = random_matrix(256, 2048, GetParam().shape, 78, GetParam().scale);
  for (const bool divides : {false, true}) {
    for (const ScaleSearch convention : {ScaleSearch::kAmax, ScaleSearch::kMse}) {
      const float global =
          find_scheme(SchemeId::kNvfp4)
              ->global(largest_magnitude(matrix.values), {.search = convention}, divides);
      const auto amax = errors_by(ScaleSearch::kAmax, matrix, global, divides);
      const auto four_over_six = errors_by(ScaleSearch::kFourOverSix, matrix, global, divides);
      const auto mse = errors_by(ScaleSearch::kMse, matrix, global, divides);
      for (std::size_t b = 0; b < mse.size(); ++b) {
        ASSERT_LE(four_over_six[b], amax[b] * (1 + 0x1p-16));
        ASSERT_LE(mse[b], four_over_six[b] * (1 + 0x1p-16));
      }
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& row) {
  return row.param.name;
}

INSTANTIATE_TEST_SUITE_P(Data, Nvfp4Search, ::testing::ValuesIn(kCases), case_name);
INSTANTIATE_TEST_SUITE_P(SlowData, Nvfp4Search, ::testing::ValuesIn(kSlowCases), case_name);

TEST(Nvfp4SearchWindow, AlwaysContainsTheFourOverSixCandidate) {
  const Matrix matrix = random_matrix(64, 1024, Shape::kHeavy, 79);
  const float global =
      find_scheme(SchemeId::kNvfp4)->global(largest_magnitude(matrix.values), {}, false);
  const auto four_over_six = errors_by(ScaleSearch::kFourOverSix, matrix, global, false);
  EncodeSetup setup{.options = {.window = {.below = 0, .above = 0, .above_small = 0}}};
  setup.global = global;
  const auto narrow = errors_of_blocks(matrix, decode(encode(SchemeId::kNvfp4, matrix, setup)));
  EXPECT_EQ(narrow, four_over_six);
}

}  // namespace
}  // namespace ingot::quantize
