// The search by moments against a plain one in double, which tries every scale of the format.

#include "formats/container/bfloat16.h"
#include "quantize/block_moments.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/scales/int4_moments.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;
using ingot::testing::expect_error;

constexpr EncodeOptions kByHessian{.search = ScaleSearch::kHessian};
constexpr std::size_t kNumbers = kMomentBlock * kMomentBlock;

// Means of x x^T over tokens whose inputs depend on each other: each has a share of what all have,
// and a mean. Fewer tokens than 16 leave directions without any moment.
std::vector<float> some_moments(std::size_t cols, std::size_t tokens, std::uint32_t seed,
                                double shared = 0.6) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> moments(cols * kMomentBlock);
  for (std::size_t b = 0; b < cols / kMomentBlock; ++b) {
    std::array<double, kMomentBlock> sizes{};
    for (double& size : sizes) size = std::exp(normal(random));
    std::array<double, kNumbers> sums{};
    for (std::size_t t = 0; t < tokens; ++t) {
      std::array<double, kMomentBlock> x{};
      const double common = shared * (normal(random) + 0.5);
      for (std::size_t i = 0; i < kMomentBlock; ++i) x[i] = sizes[i] * (common + normal(random));
      for (std::size_t i = 0; i < kNumbers; ++i)
        sums[i] += x[i / kMomentBlock] * x[i % kMomentBlock];
    }
    for (std::size_t i = 0; i < kNumbers; ++i)
      moments[b * kNumbers + i] = static_cast<float>(sums[i] / static_cast<double>(tokens));
  }
  return moments;
}

std::vector<float> identities(std::size_t cols, float times) {
  std::vector<float> moments(cols * kMomentBlock);
  for (std::size_t c = 0; c < cols; ++c) moments[c * kMomentBlock + c % kMomentBlock] = times;
  return moments;
}

// Groups of a matrix, and the errors by moments that differences have in one.
struct Judge {
  const Matrix& values;
  const std::vector<float>& moments;
  std::size_t block_rows, block_cols;

  [[nodiscard]] std::size_t across() const { return (values.cols + block_cols - 1) / block_cols; }
  [[nodiscard]] std::size_t down() const { return (values.rows + block_rows - 1) / block_rows; }

  // The sum of d^T S d over the rows and blocks of a group; rest(row, col) is d.
  template <typename Rest>
  [[nodiscard]] double error(std::size_t group, const Rest& rest, bool is_diagonal = false) const {
    const std::size_t row = group / across() * block_rows, col = group % across() * block_cols;
    double sum = 0;
    for (std::size_t r = row; r < std::min(values.rows, row + block_rows); ++r) {
      for (std::size_t c = col; c < std::min(values.cols, col + block_cols); c += kMomentBlock) {
        std::array<double, kMomentBlock> d{};
        for (std::size_t i = 0; i < kMomentBlock; ++i) d[i] = rest(r, c + i);
        const float* s = moments.data() + c * kMomentBlock;
        for (std::size_t i = 0; i < kNumbers; ++i) {
          const std::size_t j = i / kMomentBlock, k = i % kMomentBlock;
          if (!is_diagonal || j == k) sum += double{s[i]} * d[j] * d[k];
        }
      }
    }
    return sum;
  }
  // Under a scale, with the nearest codes.
  [[nodiscard]] double error_under(std::size_t group, formats::CodeKind kind, float scale) const {
    double result = 0;
    with_code(kind, [&](auto code) {
      result = error(group, [&](std::size_t r, std::size_t c) {
        const float value = values.values[r * values.cols + c];
        return double{value} -
               double{code.value(code.nearest(value, value / scale))} * double{scale};
      });
    });
    return result;
  }
};

// Scales under which the largest value of a group keeps more than this part of itself, and has at
// least the code of this number.
struct Reach {
  float kept, code;
};
std::vector<std::vector<float>> scales_of_groups(const Matrix& matrix, std::size_t group_cols,
                                                 const std::vector<float>& scales, Reach reach) {
  std::vector<std::vector<float>> result;
  for (std::size_t first = 0; first < matrix.values.size(); first += group_cols) {
    float amax = 0;
    for (std::size_t i = first; i < first + group_cols; ++i)
      amax = std::max(amax, std::fabs(matrix.values[i]));
    std::vector<float>& some = result.emplace_back();
    for (const float scale : scales) {
      if (6 * scale > reach.kept * amax && amax > reach.code * scale) some.push_back(scale);
    }
  }
  return result;
}

// No scale of the list has a clearly smaller error than the one that each group got.
void expect_none_better(const Coded& coded, const Judge& judge,
                        const std::vector<std::vector<float>>& others) {
  const Matrix decoded = decode(coded);
  const formats::CodeKind kind = formats::scheme_facts(coded.id).code;
  for (std::size_t g = 0; g < coded.effective.size(); ++g) {
    const auto rest = [&](std::size_t r, std::size_t c) {
      const std::size_t at = r * judge.values.cols + c;
      return double{judge.values.values[at]} - double{decoded.values[at]};
    };
    const double own = judge.error(g, rest);
    // The share added to the diagonal and sums in FP32 leave this much of errors that cancel.
    const double noise = 2e-5 * judge.error(g, rest, true);
    for (const float scale : others[g]) {
      ASSERT_LE(own, judge.error_under(g, kind, scale) * (1 + 1e-4) + noise)
          << "group " << g << " has scale " << coded.effective[g] << ", better is " << scale;
    }
  }
}

std::vector<float> nvfp4_scales(const Coded& coded) {
  std::vector<float> scales;
  for (std::uint8_t code = 1; code <= formats::kE4m3Largest; ++code) {
    const float value = formats::kE4m3Values[code];
    scales.push_back(coded.divides ? value / coded.global : value * coded.global);
  }
  return scales;
}

TEST(HessianSearch, NoScaleOfNvfp4IsBetter) {
  for (const Shape shape : {Shape::kNormal, Shape::kHeavy, Shape::kBimodal}) {
    const Matrix matrix = random_matrix(19, 96, shape, 91, 0.03F);
    for (const std::size_t tokens : {200U, 20U, 3U}) {
      for (const bool divides : {false, true}) {
        const EncodeSetup setup{
            .options = kByHessian, .divides = divides, .moments = some_moments(96, tokens, 5)};
        const Coded coded = encode(SchemeId::kNvfp4, matrix, setup);
        const Judge judge{matrix, setup.moments, 1, 16};
        expect_none_better(coded, judge,
                           scales_of_groups(matrix, 16, nvfp4_scales(coded), {0.35F, 3.52F}));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(HessianSearch, NoExponentOfMxfp4IsBetter) {
  for (const Shape shape : {Shape::kNormal, Shape::kHeavy, Shape::kBimodal}) {
    const Matrix matrix = random_matrix(19, 192, shape, 92, 0.03F);
    for (const std::size_t tokens : {200U, 20U, 3U}) {
      const EncodeSetup setup{.options = kByHessian, .moments = some_moments(192, tokens, 6)};
      const Coded coded = encode(SchemeId::kMxfp4, matrix, setup);
      std::vector<float> scales;
      for (int exponent = -40; exponent < 20; ++exponent)
        scales.push_back(std::ldexp(1.0F, exponent));
      expect_none_better(coded, {matrix, setup.moments, 1, 32},
                         scales_of_groups(matrix, 32, scales, {0.45F, 2.52F}));
      if (HasFailure()) return;
    }
  }
}

constexpr SchemeId kByMoments[] = {
    SchemeId::kNvfp4,     SchemeId::kMxfp4,      SchemeId::kInt4Group, SchemeId::kInt8Channel,
    SchemeId::kInt8Block, SchemeId::kFp8Channel, SchemeId::kFp8Block};

// All positive BF16 numbers under which the largest value keeps enough, whatever the group.
TEST(HessianSearch, NoScaleOfInt4IsBetter) {
  const Matrix matrix = random_matrix(7, 256, Shape::kNormal, 90, 0.03F);
  for (const std::size_t block : {32U, 64U, 128U, 256U}) {
    for (const std::size_t tokens : {60U, 3U}) {
      const EncodeSetup setup{
          .options = kByHessian, .block = block, .moments = some_moments(256, tokens, 4)};
      const Coded coded = encode(SchemeId::kInt4Group, matrix, setup);
      std::vector<std::vector<float>> scales(coded.effective.size());
      for (std::size_t g = 0; g < scales.size(); ++g) {
        const float* values = matrix.values.data() + g * block;
        float amax = 0;
        for (std::size_t c = 0; c < block; ++c) amax = std::max(amax, std::fabs(values[c]));
        for (std::uint32_t word = 1; word < formats::kBf16Infinity; ++word) {
          const float scale = formats::float_from_bf16(static_cast<std::uint16_t>(word));
          if (7 * scale > 0.32F * amax && amax > 3.51F * scale) scales[g].push_back(scale);
        }
        ASSERT_GT(scales[g].size(), 300U);
      }
      expect_none_better(coded, {matrix, setup.moments, 1, block}, scales);
      if (HasFailure()) return;
    }
  }
}

double total_error(const Matrix& matrix, const Coded& coded, const std::vector<float>& moments) {
  const Matrix decoded = decode(coded);
  const Judge judge{matrix, moments, matrix.rows, matrix.cols};
  return judge.error(0, [&](std::size_t r, std::size_t c) {
    const std::size_t at = r * matrix.cols + c;
    return double{matrix.values[at]} - double{decoded.values[at]};
  });
}

TEST(HessianSearch, LosesLessByMomentsThanMseInEveryScheme) {
  const Matrix matrix = random_matrix(256, 256, Shape::kNormal, 93);
  const std::vector<float> moments = some_moments(256, 100, 7);
  for (const SchemeId id : kByMoments) {
    const Coded mse = encode(id, matrix);
    const Coded hessian = encode(id, matrix, {.options = kByHessian, .moments = moments});
    const double ratio = total_error(matrix, hessian, moments) / total_error(matrix, mse, moments);
    EXPECT_LT(ratio, 1) << formats::scheme_facts(id).name;
    RecordProperty(std::string(formats::scheme_facts(id).name), std::to_string(ratio));
  }
}

TEST(HessianSearch, GroupsTakeNoWorseScaleThanByMse) {
  const Matrix matrix = random_matrix(131, 288, Shape::kHeavy, 94);
  const std::vector<float> moments = some_moments(288, 50, 8);
  for (const SchemeId id : kByMoments) {
    SCOPED_TRACE(formats::scheme_facts(id).name);
    const Coded mse = encode(id, matrix);
    const Coded hessian = encode(id, matrix, {.options = kByHessian, .moments = moments});
    std::vector<std::vector<float>> scales;
    for (const float scale : mse.effective) scales.push_back({scale});
    expect_none_better(hessian, {matrix, moments, mse.block_rows, mse.block_cols}, scales);
    if (HasFailure()) return;
  }
}

TEST(HessianSearch, ZeroPointsLoseNoMoreInAnyGroup) {
  const Matrix matrix = random_matrix(67, 288, Shape::kNormal, 97);
  EncodeSetup setup{.options = kByHessian, .moments = some_moments(288, 50, 8)};
  const Coded without = encode(SchemeId::kInt4Group, matrix, setup);
  setup.has_zeros = true;
  const Coded with = encode(SchemeId::kInt4Group, matrix, setup);
  const Matrix first = decode(without), second = decode(with);
  const Judge judge{matrix, setup.moments, 1, without.block_cols};
  const auto error_of = [&](std::size_t group, const Matrix& decoded, bool is_diagonal) {
    const auto rest = [&](std::size_t r, std::size_t c) {
      const std::size_t at = r * matrix.cols + c;
      return double{matrix.values[at]} - double{decoded.values[at]};
    };
    return judge.error(group, rest, is_diagonal);
  };
  for (std::size_t g = 0; g < with.effective.size(); ++g) {
    ASSERT_LE(error_of(g, second, false),
              error_of(g, first, false) * (1 + 1e-4) + 2e-5 * error_of(g, first, true))
        << g;
  }
  EXPECT_LT(total_error(matrix, with, setup.moments),
            0.95 * total_error(matrix, without, setup.moments));
}

TEST(HessianSearch, WithoutMomentsItIsMse) {
  const Matrix matrix = random_matrix(40, 288, Shape::kHeavy, 95);
  for (const SchemeId id : kByMoments) {
    const Coded mse = encode(id, matrix), hessian = encode(id, matrix, {.options = kByHessian});
    EXPECT_TRUE(hessian.scales == mse.scales && hessian.weight == mse.weight);
  }
}

// Where S is a multiple of the identity the errors are those of mse. INT4 has more candidates, as
// have NVFP4 and MXFP4, where these are hardly ever better.
TEST(HessianSearch, EqualInputsWithoutCorrelationAreMse) {
  const Matrix matrix = random_matrix(140, 288, Shape::kNormal, 96);
  for (const SchemeId id : kByMoments) {
    SCOPED_TRACE(formats::scheme_facts(id).name);
    const Coded mse = encode(id, matrix);
    for (const float times : {0.0F, 1e-40F, 1.0F, 0x1p100F}) {
      const Coded hessian =
          encode(id, matrix, {.options = kByHessian, .moments = identities(288, times)});
      std::size_t n_other = 0;
      for (std::size_t g = 0; g < mse.effective.size(); ++g)
        n_other += hessian.effective[g] != mse.effective[g] ? 1U : 0U;
      if (id != SchemeId::kInt4Group) {
        EXPECT_LE(n_other, mse.effective.size() / 500);
      }
      EXPECT_LE(total_error(matrix, hessian, identities(288, 1)),
                total_error(matrix, mse, identities(288, 1)) * (1 + 1e-6));
    }
  }
}

// A column without input decides nothing, but is not lost: verify takes less for a fault.
TEST(HessianSearch, LargestValueKeepsAQuarterWhateverItsInput) {
  Matrix matrix = random_matrix(64, 64, Shape::kNormal, 99, 0.01F);
  std::vector<float> moments = some_moments(64, 50, 19);
  for (std::size_t c = 0; c < 64; c += 16) {
    for (std::size_t r = 0; r < 64; ++r) matrix.values[r * 64 + c] = r % 2 == 0 ? 1.0F : -1.0F;
    for (std::size_t i = 0; i < kMomentBlock; ++i)
      moments[c * kMomentBlock + i] = moments[(c + i) * kMomentBlock] = 0;
  }
  for (const SchemeId id : kByMoments) {
    const Matrix decoded = decode(encode(id, matrix, {.options = kByHessian, .moments = moments}));
    for (std::size_t at = 0; at < matrix.values.size(); at += 16)
      ASSERT_GE(std::fabs(decoded.values[at]), 0.25) << formats::scheme_facts(id).name;
  }
}

TEST(HessianSearch, DependsOnlyOnRatiosWithinAGroup) {
  const Matrix matrix = random_matrix(32, 256, Shape::kNormal, 97);
  std::vector<float> moments = some_moments(256, 30, 9);
  const Coded before =
      encode(SchemeId::kMxfp4, matrix, {.options = kByHessian, .moments = moments});
  for (std::size_t i = 0; i < moments.size(); ++i)
    moments[i] = std::ldexp(moments[i], i / (2 * kNumbers) % 2 == 0 ? 80 : -60);
  const Coded after = encode(SchemeId::kMxfp4, matrix, {.options = kByHessian, .moments = moments});
  EXPECT_EQ(after.scales, before.scales);
  EXPECT_EQ(after.weight, before.weight);
}

// Rows at once, and their order, decide nothing.
TEST(HessianSearch, RowsAreEncodedIndependently) {
  const Matrix matrix = random_matrix(21, 128, Shape::kHeavy, 98);
  const std::vector<float> moments = some_moments(128, 30, 10);
  for (const SchemeId id : {SchemeId::kMxfp4, SchemeId::kInt8Channel, SchemeId::kFp8Channel}) {
    const Coded all = encode(id, matrix, {.options = kByHessian, .moments = moments});
    for (std::size_t r = 0; r < matrix.rows; ++r) {
      Matrix row(1, matrix.cols);
      std::copy_n(matrix.values.begin() + static_cast<std::ptrdiff_t>(r * matrix.cols), matrix.cols,
                  row.values.begin());
      const Coded one = encode(id, row, {.options = kByHessian, .moments = moments});
      for (std::size_t g = 0; g < one.effective.size(); ++g)
        ASSERT_EQ(one.effective[g], all.effective[r * all.scale_cols + g]) << r;
    }
  }
}

std::vector<std::vector<float>> kinds_of_moments(std::size_t cols) {
  std::vector<std::vector<float>> kinds = {
      some_moments(cols, 100, 11), some_moments(cols, 100, 12, 8), some_moments(cols, 2, 13),
      identities(cols, 3), std::vector<float>(cols * kMomentBlock)};
  // Inputs that are always zero.
  std::vector<float> sparse = some_moments(cols, 100, 14);
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (i % kMomentBlock % 3 == 0 || i / kMomentBlock % kMomentBlock % 3 == 0) sparse[i] = 0;
  }
  kinds.push_back(sparse);
  return kinds;
}

TEST(HessianSearch, EveryTargetGivesTheTwinsCodes) {
  for (const std::size_t group_cols : {16U, 32U}) {
    constexpr std::size_t kRows = 21, kCols = 64;
    std::vector<float> scales(formats::kE4m3Largest + 1);
    for (const AwkwardMatrix& awkward : awkward_matrices(kRows, kCols)) {
      const float global = find_scheme(SchemeId::kNvfp4)
                               ->global(largest_magnitude(awkward.matrix.values), {}, false);
      std::size_t lowest = 1;
      for (std::size_t code = 0; code < scales.size(); ++code) {
        scales[code] = formats::kE4m3Values[code] * global;
        if (scales[code] == 0) lowest = code + 1;
      }
      for (const std::vector<float>& moments : kinds_of_moments(kCols)) {
        const std::vector<MomentBlock> blocks = factor_moments(moments, group_cols / kMomentBlock);
        const HessianGroups in{.values = awkward.matrix.view(),
                               .moments = blocks,
                               .group_cols = group_cols,
                               .scales = scales,
                               .least_reach = group_cols == 16 ? 3.51F : 2.51F};
        std::vector<std::uint8_t> first(kRows * kCols / group_cols);
        for (std::size_t i = 0; i < first.size(); ++i) {
          const float* values = awkward.matrix.values.data() + i * group_cols;
          float amax = 0;
          for (std::size_t c = 0; c < group_cols; ++c) amax = std::max(amax, std::fabs(values[c]));
          first[i] = static_cast<std::uint8_t>(std::clamp<std::size_t>(
              formats::e4m3_from_float(amax / (6 * global)), lowest, formats::kE4m3Largest));
        }
        std::vector<std::uint8_t> expected = first;
        scalar::choose_hessian_codes(in, expected);
        for_each_target([&] {
          std::vector<std::uint8_t> codes = first;
          choose_hessian_codes(in, codes);
          EXPECT_EQ(codes, expected) << awkward.name;
        });
        if (HasFailure()) return;
      }
    }
  }
}

// The twin tries every scale; ties, and groups that a scale holds, are among the matrices.
TEST(HessianSearch, EveryTargetGivesTheTwinsScalesOfInt4) {
  constexpr std::size_t kRows = 5, kCols = 64;
  std::vector<AwkwardMatrix> matrices = awkward_matrices(kRows, kCols);
  std::mt19937 random(17);
  for (const float unit : {1.0F, 0.01F, 0x1p-130F}) {
    for (const unsigned most : {1U, 2U, 3U, 7U}) {
      Matrix& few = matrices.emplace_back("few codes", Matrix(kRows, kCols)).matrix;
      for (float& value : few.values) {
        const auto code = static_cast<int>(random() % (2 * most + 1)) - static_cast<int>(most);
        value = unit * static_cast<float>(code);
      }
    }
  }
  for (const std::size_t group_cols : {16U, 32U, 64U}) {
    for (const AwkwardMatrix& awkward : matrices) {
      for (const std::vector<float>& moments : kinds_of_moments(kCols)) {
        const std::vector<MomentBlock> blocks = factor_moments(moments, group_cols / kMomentBlock);
        const Int4MomentGroups in{
            .values = awkward.matrix.view(), .moments = blocks, .group_cols = group_cols};
        std::vector<float> expected(kRows * kCols / group_cols), scales(expected.size());
        scalar::choose_int4_scales_by_moments(in, expected);
        for_each_target([&] {
          choose_int4_scales_by_moments(in, scales);
          EXPECT_EQ(scales, expected) << awkward.name << " in groups of " << group_cols;
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(HessianSearch, EveryTargetGivesTheTwinsErrors) {
  constexpr std::size_t kRows = 37, kCols = 96;
  struct Blocks {
    std::size_t rows, cols;
  };
  for (const Blocks block : {Blocks{1, 32}, Blocks{1, 96}, Blocks{16, 32}, Blocks{128, 96}}) {
    const std::size_t n = ((kRows + block.rows - 1) / block.rows) * (kCols / block.cols);
    for (const AwkwardMatrix& awkward : awkward_matrices(kRows, kCols)) {
      std::vector<float> scales(3 * n);
      std::vector<std::uint8_t> zeros(scales.size());
      for (std::size_t i = 0; i < zeros.size(); ++i) zeros[i] = static_cast<std::uint8_t>(i % 16);
      const float largest = largest_magnitude(awkward.matrix.values);
      for (std::size_t i = 0; i < scales.size(); ++i) {
        scales[i] = std::max(largest, 0x1p-100F) / (100 + static_cast<float>(i % 40) * 4);
      }
      for (const std::vector<float>& moments : kinds_of_moments(kCols)) {
        const std::vector<MomentBlock> blocks = factor_moments(moments, block.cols / kMomentBlock);
        ScaledGroups in{.values = awkward.matrix.view(),
                        .block_rows = block.rows,
                        .block_cols = block.cols,
                        .scales = scales};
        for (const auto& [kind, has_zeros] : {std::pair(formats::CodeKind::kE4m3, false),
                                              std::pair(formats::CodeKind::kInt8, false),
                                              std::pair(formats::CodeKind::kInt4, false),
                                              std::pair(formats::CodeKind::kInt4, true)}) {
          if (has_zeros) in.zeros = zeros;
          std::vector<float> expected(scales.size()), errors(scales.size());
          scalar::hessian_errors(kind, in, blocks, expected);
          for_each_target([&, kind = kind] {
            hessian_errors(kind, in, blocks, errors);
            for (std::size_t i = 0; i < errors.size(); ++i)
              ASSERT_EQ(bits_of(errors[i]), bits_of(expected[i])) << awkward.name << " " << i;
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(BlockMoments, FactorsMultiplyToTheMoments) {
  const std::vector<float> moments = some_moments(64, 100, 15);
  const std::vector<MomentBlock> blocks = factor_moments(moments, 4);
  double largest = 0;
  for (std::size_t c = 0; c < 64; ++c)
    largest = std::max(largest, double{moments[c * kMomentBlock + c % kMomentBlock]});
  // A power of four.
  const double unit = std::pow(4, -std::floor(std::log2(largest) / 2));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      for (std::size_t j = 0; j < kMomentBlock; ++j) {
        double product = 0;
        for (std::size_t k = 0; k < kMomentBlock; ++k) {
          product += double{blocks[b].factor[i * kMomentBlock + k]} *
                     double{blocks[b].factor[j * kMomentBlock + k]};
        }
        EXPECT_NEAR(product, unit * double{moments[b * kNumbers + i * kMomentBlock + j]}, 4e-5);
      }
    }
  }
}

TEST(BlockMoments, FloorsAreBelowEveryError) {
  std::mt19937 random(16);
  std::normal_distribution<double> normal;
  std::size_t n_useful = 0;
  for (const double shared : {0.0, 0.6, 3.0}) {
    const std::vector<float> moments = some_moments(256, 60, 17, shared);
    for (const MomentBlock& block : factor_moments(moments, 1)) {
      for (int trial = 0; trial < 200; ++trial) {
        double error = 0, floor = 0;
        std::array<double, kMomentBlock> d{};
        // Steps back and forth, which a common share cancels.
        for (std::size_t i = 0; i < kMomentBlock; ++i) {
          d[i] = (i % 2 == 0 ? 1 : -1) * (1 + 0.3 * normal(random));
          floor += double{block.floor[i]} * d[i] * d[i];
        }
        for (std::size_t k = 0; k < kMomentBlock; ++k) {
          double z = 0;
          for (std::size_t i = 0; i <= k; ++i)
            z += d[i] * double{block.factor[i * kMomentBlock + k]};
          error += z * z;
        }
        ASSERT_LE(floor, error);
      }
      if (block.floor[0] > 0) ++n_useful;
    }
  }
  EXPECT_GT(n_useful, 32U);
}

TEST(BlockMoments, RefusesWhatNoInputsHave) {
  const std::vector<float> good = some_moments(32, 40, 18);
  const auto refused = [&](std::size_t at, float value, bool both = false) {
    std::vector<float> moments = good;
    moments[kNumbers + at] = value;
    if (both) moments[kNumbers + at % kMomentBlock * kMomentBlock + at / kMomentBlock] = value;
    expect_error(ErrorCode::kCorrupt, {"block 1 "}, [&] { factor_moments(moments, 1); });
  };
  refused(5, std::numeric_limits<float>::quiet_NaN());
  refused(5, std::numeric_limits<float>::infinity());
  refused(0, -1.0F);
  refused(5, good[kNumbers + 5] * 1.01F);
  refused(1, 1000.0F, true);
  // Three inputs of which each pair may be, but not all.
  std::vector<float> moments(kNumbers);
  for (std::size_t i = 0; i < kMomentBlock; ++i) moments[i * kMomentBlock + i] = 1;
  for (const auto& [i, j, value] : {std::tuple{0U, 1U, 0.9F}, {0U, 2U, 0.9F}, {1U, 2U, -0.9F}})
    moments[i * kMomentBlock + j] = moments[j * kMomentBlock + i] = value;
  expect_error(ErrorCode::kCorrupt, {"direction"}, [&] { factor_moments(moments, 1); });
}

}  // namespace
}  // namespace ingot::quantize
