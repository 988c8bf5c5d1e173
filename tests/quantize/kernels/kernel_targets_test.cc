// Every SIMD target must give the bits of the scalar twins.

#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scales/nvfp4_scales.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "quantize/quality.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kWidths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129, 300};
constexpr std::size_t kBlocks[][2] = {{1, 16}, {1, 32}, {1, 1000}, {3, 5}, {4, 128}, {128, 128}};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> scales_for(const Matrix& matrix, const std::size_t (&block)[2],
                              std::mt19937& random) {
  const std::size_t n =
      (matrix.rows + block[0] - 1) / block[0] * ((matrix.cols + block[1] - 1) / block[1]);
  std::vector<float> scales(n);
  scalar::group_amax(matrix.view(), block[0], block[1], scales);
  for (float& scale : scales) {
    const float shrink = static_cast<float>(1 + random() % 500);
    scale = std::max(scale / shrink, std::numeric_limits<float>::min());
  }
  return scales;
}

void expect_same_codes(formats::CodeKind kind) {
  const std::size_t column_step = 8 / code_facts(kind).bits;
  std::mt19937 random(5);
  for (const std::size_t cols : kWidths) {
    if (cols % column_step != 0) continue;
    for (const auto& block : kBlocks) {
      for (const AwkwardMatrix& awkward : awkward_matrices(5, cols)) {
        SCOPED_TRACE(::testing::Message() << awkward.name << ", " << cols << " columns, blocks of "
                                          << block[0] << "x" << block[1]);
        const std::vector<float> scales = scales_for(awkward.matrix, block, random);
        const ScaledGroups in{.values = awkward.matrix.view(),
                              .block_rows = block[0],
                              .block_cols = block[1],
                              .scales = scales};
        const std::size_t stride = cols + 3;
        Bytes expected(5 * stride, std::byte{0xA5});
        scalar::encode_codes(kind, in, expected.data(), stride);
        for_each_target([&] {
          Bytes codes(5 * stride, std::byte{0xA5});
          encode_codes(kind, in, codes.data(), stride);
          EXPECT_TRUE(codes == expected);
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(KernelTargets, E4m3CodesAreThoseOfTheTwin) {
  expect_same_codes(formats::CodeKind::kE4m3);
}

TEST(KernelTargets, Int8CodesAreThoseOfTheTwin) {
  expect_same_codes(formats::CodeKind::kInt8);
}

TEST(KernelTargets, E2m1CodesAreThoseOfTheTwin) {
  expect_same_codes(formats::CodeKind::kE2m1);
}

TEST(KernelTargets, Int4CodesAreThoseOfTheTwin) {
  expect_same_codes(formats::CodeKind::kInt4);
}

using Errors = void (*)(const ScaledGroups&, const float*, std::span<float>);

/// `top`: the largest magnitudes of groups are at most about this many scales.
void expect_same_errors(Errors errors, Errors twin, float top) {
  std::mt19937 random(6);
  for (const std::size_t cols : kWidths) {
    std::vector<float> weights(cols);
    for (float& weight : weights) weight = static_cast<float>(random() % 100) * 0.01F;
    for (const auto& block : kBlocks) {
      for (const AwkwardMatrix& awkward : awkward_matrices(5, cols)) {
        std::vector<float> scales((5 + block[0] - 1) / block[0] *
                                  ((cols + block[1] - 1) / block[1]));
        scalar::group_amax(awkward.matrix.view(), block[0], block[1], scales);
        for (float& scale : scales) {
          const float shrink = top / (1 + static_cast<float>(random() % 1000) * 0.001F);
          scale = std::max(scale / shrink, 0x1p-126F);
        }
        const ScaledGroups in{.values = awkward.matrix.view(),
                              .block_rows = block[0],
                              .block_cols = block[1],
                              .scales = scales};
        for (const float* some_weights :
             {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
          std::vector<float> expected(scales.size());
          twin(in, some_weights, expected);
          for (const float error : expected) EXPECT_TRUE(std::isfinite(error)) << awkward.name;
          for_each_target([&] {
            std::vector<float> found(scales.size(), -1);
            errors(in, some_weights, found);
            EXPECT_TRUE(same_bits(found, expected))
                << awkward.name << ", " << cols << " columns, blocks of " << block[0] << "x"
                << block[1];
          });
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(KernelTargets, E4m3ErrorsAreThoseOfTheTwin) {
  expect_same_errors(e4m3_errors, scalar::e4m3_errors, 448);
}

TEST(KernelTargets, Int8ErrorsAreThoseOfTheTwin) {
  expect_same_errors(int8_errors, scalar::int8_errors, 150);
}

TEST(KernelTargets, E2m1ErrorsAreThoseOfTheTwin) {
  expect_same_errors(e2m1_errors, scalar::e2m1_errors, 12);
}

TEST(KernelTargets, GroupMagnitudesEqualTheTwin) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t cols : kWidths) {
    for (const auto& block : kBlocks) {
      for (AwkwardMatrix& awkward : awkward_matrices(5, cols)) {
        for (const bool nonfinite : {false, true}) {
          if (nonfinite) {
            awkward.matrix.values[cols / 2] = -infinity;
            awkward.matrix.values[3 * cols] = std::numeric_limits<float>::quiet_NaN();
          }
          std::vector<float> expected((5 + block[0] - 1) / block[0] *
                                      ((cols + block[1] - 1) / block[1]));
          scalar::group_amax(awkward.matrix.view(), block[0], block[1], expected);
          for_each_target([&] {
            std::vector<float> amaxes(expected.size(), -1);
            group_amax(awkward.matrix.view(), block[0], block[1], amaxes);
            EXPECT_TRUE(same_bits(amaxes, expected)) << awkward.name << " " << cols;
            for (const float amax : amaxes) EXPECT_TRUE(std::isfinite(amax));
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(KernelTargets, NonfiniteBf16IsFoundAtEveryPlace) {
  for (const std::size_t n : {1U, 7U, 37U}) {
    std::vector<float> values(n, -1.0F);
    for_each_target([&] {
      std::uint32_t misjudged = 0;
      for (std::uint32_t word = 0; word < 65536; ++word) {
        float& value = values[word % n];
        value = std::bit_cast<float>(word << 16);
        misjudged += has_nonfinite(values.data(), n) == std::isfinite(value) ? 1U : 0U;
        value = -1.0F;
      }
      EXPECT_EQ(misjudged, 0U);
    });
  }
}

TEST(KernelTargets, Nvfp4ScalesAreThoseOfTheTwin) {
  const EncodeOptions::Window windows[] = {{}, {0, 0, 0}, {1, 2, 3}, {126, 126, 126}};
  for (const std::size_t n_blocks : {1U, 3U, 8U, 16U, 21U, 40U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(1, n_blocks * kNvfp4Block)) {
      for (const bool divides : {false, true}) {
        for (const ScaleSearch search :
             {ScaleSearch::kAmax, ScaleSearch::kFourOverSix, ScaleSearch::kMse}) {
          const EncodeOptions options{.search = search};
          const float fitting =
              find_scheme(formats::SchemeId::kNvfp4)
                  ->global(largest_magnitude(awkward.matrix.values), options, divides);
          for (const float global : {fitting, 1.0F, fitting * 0.5F}) {
            if (global == 0 || !std::isfinite(global)) continue;
            for (const EncodeOptions::Window window : windows) {
              if (search != ScaleSearch::kMse && window.above != 8) continue;
              const Nvfp4Blocks in{.values = awkward.matrix.values.data(),
                                   .n_blocks = n_blocks,
                                   .global = global,
                                   .divides = divides,
                                   .lowest_code = nvfp4_lowest_code(global, divides),
                                   .search = search,
                                   .window = window};
              std::vector<std::uint8_t> expected(n_blocks);
              std::vector<float> expected_scales(n_blocks);
              scalar::choose_nvfp4_scales(in, expected.data(), expected_scales.data());
              for (const std::uint8_t code : expected) {
                ASSERT_GE(code, 1);
                ASSERT_LE(code, 0x7E);
              }
              for_each_target([&] {
                std::vector<std::uint8_t> codes(n_blocks);
                std::vector<float> scales(n_blocks);
                choose_nvfp4_scales(in, codes.data(), scales.data());
                EXPECT_EQ(codes, expected) << awkward.name << " under " << global;
                EXPECT_TRUE(same_bits(scales, expected_scales));
              });
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

void expect_same_values(formats::SchemeId scheme) {
  const std::size_t codes_per_byte = 8 / formats::scheme_facts(scheme).code_bits;
  std::mt19937 random(9);
  const std::size_t blocks[][2] = {{1, 16}, {1, 32}, {1, 4000}, {3, 6}, {2, 5}, {128, 128}};
  for (const std::size_t cols : {2U, 6U, 16U, 30U, 32U, 64U, 130U, 300U}) {
    for (const auto& block : blocks) {
      for (int round = 0; round < 4; ++round) {
        const std::size_t stride = cols + 4 * (random() % 2);
        const std::size_t scale_cols = (cols + block[1] - 1) / block[1] + 2;
        Bytes codes(7 * stride / codes_per_byte);
        for (std::byte& code : codes) code = static_cast<std::byte>(random());
        // Rows 5 to 11 of two matrices of 8 rows, from the second group of columns on.
        const std::size_t scale_rows = (8 + block[0] - 1) / block[0];
        std::vector<float> scales(2 * scale_rows * scale_cols);
        for (float& scale : scales) {
          scale = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFU);
          if (random() % 4 != 0 && !std::isfinite(scale)) scale = 0.75F;
        }
        const std::size_t first_scale_row = 5 / block[0];
        const CodedMatrix in{
            .scheme = scheme,
            .codes = codes.data(),
            .rows = 7,
            .cols = cols,
            .row_bytes = stride / codes_per_byte,
            .first_row = 5,
            .first_col = block[1],
            .scales = std::span<const float>(scales).subspan(first_scale_row * scale_cols),
            .first_scale_row = first_scale_row,
            .rows_per_matrix = 8,
            .scale_cols = scale_cols,
            .block_rows = block[0],
            .block_cols = block[1]};
        Matrix expected(7, cols + 1);
        const DecodeFaults faults = scalar::decode(
            in, {.data = expected.values.data(), .rows = 7, .cols = cols, .stride = cols + 1});
        for_each_target([&] {
          Matrix out(7, cols + 1);
          const DecodeFaults found =
              decode(in, {.data = out.values.data(), .rows = 7, .cols = cols, .stride = cols + 1});
          EXPECT_TRUE(same_bits(out.values, expected.values)) << cols << " columns";
          EXPECT_EQ(found.nan_codes, faults.nan_codes);
          EXPECT_EQ(found.first_nan, faults.first_nan);
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(KernelTargets, E4m3ValuesAreThoseOfTheTwin) {
  expect_same_values(formats::SchemeId::kFp8Block);
}

TEST(KernelTargets, Int8ValuesAreThoseOfTheTwin) {
  expect_same_values(formats::SchemeId::kInt8Block);
}

TEST(KernelTargets, E2m1ValuesAreThoseOfTheTwin) {
  expect_same_values(formats::SchemeId::kNvfp4);
}

TEST(KernelTargets, LargestE4m3MagnitudesAreThoseOfTheTwin) {
  std::mt19937 random(15);
  for (int round = 0; round < 200; ++round) {
    const std::size_t cols = 1 + random() % 400;
    Bytes codes(3 * cols);
    const unsigned spread = 1 + static_cast<unsigned>(random() % 256);
    for (std::byte& code : codes) code = static_cast<std::byte>(random() % spread);
    std::vector<float> scales(2 * ((cols + 63) / 64));
    for (float& scale : scales) scale = static_cast<float>(random() % 100) * 0.01F;
    if (round % 10 == 0) scales[0] = std::numeric_limits<float>::max();
    const CodedMatrix in{.scheme = formats::SchemeId::kFp8Block,
                         .codes = codes.data(),
                         .rows = 3,
                         .cols = cols,
                         .row_bytes = cols,
                         .scales = scales,
                         .rows_per_matrix = 3,
                         .scale_cols = (cols + 63) / 64,
                         .block_rows = 2,
                         .block_cols = 64};
    float expected = 0;
    const bool finite = scalar::e4m3_amax(in, expected);
    for_each_target([&] {
      float largest = 0;
      EXPECT_EQ(e4m3_amax(in, largest), finite);
      EXPECT_EQ(bits_of(largest), bits_of(expected));
    });
    if (HasFailure()) return;
  }
}

TEST(KernelTargets, QualitySumsAreThoseOfTheTwin) {
  for (const std::size_t cols : {8U, 16U, 24U, 128U, 136U, 384U, 1000U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(5, cols)) {
      for (const std::size_t block_cols :
           {std::size_t{16}, std::size_t{48}, std::size_t{128}, std::size_t{256}, cols}) {
        if (block_cols > cols) continue;
        const std::size_t groups = (cols + block_cols - 1) / block_cols;
        Matrix decoded = awkward.matrix;
        std::mt19937 random(3);
        for (float& value : decoded.values) {
          if (random() % 3 == 0) value = random() % 2 == 0 ? 0.0F : value * 0.875F;
        }
        std::vector<float> scales(3 * groups);
        for (float& scale : scales) scale = static_cast<float>(random() % 100) * 0.01F;
        const QualityRun run{.values = awkward.matrix.view(),
                             .decoded = decoded.view(),
                             .scales = scales,
                             .block_rows = 2,
                             .block_cols = block_cols,
                             .half_top_step = 1};
        const QualitySums expected = scalar::measure_quality(run);
        for_each_target([&] { EXPECT_EQ(measure_quality(run), expected) << awkward.name; });
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
