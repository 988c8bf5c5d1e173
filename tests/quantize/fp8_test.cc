#include "formats/container/float8.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

constexpr EncodeSetup kByAmax{.options = {.search = ScaleSearch::kAmax}};
constexpr EncodeSetup kUe8m0{.options = {.fp8_grid = Fp8Grid::kUe8m0}};

/// One block whose largest magnitude is `amax`.
Matrix block_of(float amax) {
  Matrix matrix(2, 3);
  matrix.values = {0, amax / 2, -amax, amax / 3, 0, amax / 7};
  return matrix;
}

TEST(Fp8Block, ScalesAreTheDocumentedOnes) {
  const struct {
    float amax, scale;
    std::uint32_t power_of_two_byte;
  } rows[] = {{448, 1, 127},
              {449, 1.00223219F, 128},
              {1, 0.00223214F, 119},
              {0.5F, 0.00111607F, 118},
              {1e-4F, 2.2321e-7F, 105},
              {1e-9F, 2.2321e-7F, 105},
              {0, 2.2321e-7F, 105}};
  for (const auto& row : rows) {
    for_each_target([&] {
      const Coded plain = encode(SchemeId::kFp8Block, block_of(row.amax), kByAmax);
      ASSERT_EQ(plain.effective.size(), 1U);
      EXPECT_EQ(plain.effective[0], std::max(row.amax, 1e-4F) / 448.0F);
      EXPECT_NEAR(plain.effective[0], row.scale, row.scale * 1e-4);
      const Coded rounded = encode(SchemeId::kFp8Block, block_of(row.amax), kUe8m0);
      EXPECT_EQ(bits_of(rounded.effective[0]), row.power_of_two_byte << 23) << row.amax;
    });
  }
}

TEST(Fp8Block, LargestValueGetsTheLargestCode) {
  const Matrix matrix = random_matrix(300, 200, Shape::kHeavy, 3);
  const Coded coded = encode(SchemeId::kFp8Block, matrix, kByAmax);
  EXPECT_EQ(coded.scale_cols, 2U);
  for (std::size_t block = 0; block < 6; ++block) {
    int largest = 0;
    for (std::size_t r = block / 2 * 128; r < std::min<std::size_t>(block / 2 * 128 + 128, 300);
         ++r) {
      const std::size_t end = block % 2 == 0 ? 128 : 200;
      for (std::size_t c = block % 2 * 128; c < end; ++c) {
        largest = std::max(largest, coded.code(r, c) & 0x7F);
      }
    }
    EXPECT_EQ(largest, 0x7E) << block;
  }
}

TEST(Fp8Block, GivenScalesAreUsedAndWritten) {
  const Matrix matrix = random_matrix(130, 260, Shape::kNormal, 4);
  const Coded computed = encode(SchemeId::kFp8Block, matrix);
  EncodeSetup setup;
  for (const float scale : computed.effective) setup.given_scales.push_back(scale * 2);
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kFp8Block, matrix, setup);
    EXPECT_EQ(coded.effective, setup.given_scales);
    // Twice the scale takes one from the exponent of every code that stays normal.
    for (std::size_t r = 0; r < 130; ++r) {
      for (std::size_t c = 0; c < 260; ++c) {
        if ((computed.code(r, c) & 0x7F) >= 16) {
          ASSERT_EQ(coded.code(r, c), computed.code(r, c) - 8);
        }
      }
    }
  });
}

TEST(Fp8Block, ValuesOnTheGridRoundTrip) {
  // A released checkpoint after a cast to BF16: codes times powers of two.
  std::mt19937 random(8);
  Matrix matrix(256, 256);
  EncodeSetup setup;
  for (int i = 0; i < 4; ++i) setup.given_scales.push_back(std::ldexp(1.0F, -8 - i));
  std::vector<int> codes(matrix.values.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<int>(random() % 256);
    if ((codes[i] & 0x7F) == 0x7F) codes[i] ^= 1;
    const std::size_t block = i / 256 / 128 * 2 + i % 256 / 128;
    matrix.values[i] =
        formats::float_from_e4m3(static_cast<std::uint8_t>(codes[i])) * setup.given_scales[block];
  }
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kFp8Block, matrix, setup);
    for (std::size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(coded.byte(i), codes[i]) << i;
  });
}

TEST(Fp8Channel, EveryRowHasItsOwnScale) {
  Matrix matrix(3, 5);
  matrix.values = {1, -2, 0.5F, 0, 0.25F, 0, 0, 0, 0, -0.0F, 1e-6F, 0, 3e-6F, 0, 0};
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kFp8Channel, matrix, kByAmax);
    ASSERT_EQ(coded.effective.size(), 3U);
    EXPECT_EQ(coded.effective[0], 2.0F / 448.0F);
    EXPECT_EQ(coded.effective[1], 1e-12F / 448.0F);
    EXPECT_EQ(coded.effective[2], 3e-6F / 448.0F);  // no floor of 1e-4 here
    EXPECT_EQ(coded.code(0, 1), 0xFE);
    EXPECT_EQ(coded.code(1, 4), 0x80);
    EXPECT_EQ(coded.code(2, 2), 0x7E);
    const Coded rounded = encode(SchemeId::kFp8Channel, matrix, kUe8m0);
    for (const float scale : rounded.effective) EXPECT_TRUE(formats::is_e8m0_value(scale));
    EXPECT_EQ(rounded.effective[0], 0x1p-7F);
  });
}

TEST(Fp8Tensor, FusedScaleSaturatesNothing) {
  const Scheme& scheme = *find_scheme(SchemeId::kFp8Tensor);
  EXPECT_EQ(scheme.global(896.0F, {}, false), 2.0F);
  EXPECT_EQ(scheme.global(900.0F, kUe8m0.options, false), 4.0F);
  EXPECT_EQ(scheme.global(0.0F, {}, false), 1e-12F / 448.0F);
  Matrix matrix(2, 40);
  for (std::size_t i = 0; i < 80; ++i) matrix.values[i] = static_cast<float>(i) - 40;
  EncodeSetup setup;
  setup.global = 0.25F;
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kFp8Tensor, matrix, setup);
    for (std::size_t i = 0; i < 80; ++i) {
      ASSERT_EQ(coded.byte(i), formats::e4m3_from_float(matrix.values[i] * 4)) << i;
    }
  });
}

TEST(Fp8, LargestFloatsDoNotDecodeToInfinity) {
  for (const SchemeId id : {SchemeId::kFp8Block, SchemeId::kFp8Channel, SchemeId::kFp8Tensor}) {
    for (const Fp8Grid grid : {Fp8Grid::kAmax, Fp8Grid::kUe8m0}) {
      for (const float value : {std::numeric_limits<float>::max(), 0x1.FEp127F}) {
        Matrix matrix(1, 40);
        for (std::size_t i = 0; i < 40; ++i) {
          matrix.values[i] = (i % 2 != 0 ? -value : value) / static_cast<float>(i + 1);
        }
        for_each_target([&] {
          const Matrix decoded = decode(encode(id, matrix, {.options = {.fp8_grid = grid}}));
          for (std::size_t i = 0; i < 40; ++i) {
            EXPECT_NEAR(decoded.values[i] / matrix.values[i], 1.0F, 1.0F / 15) << i;
          }
        });
      }
    }
  }
}

int signed_code(const Coded& coded, std::size_t row, std::size_t col) {
  return static_cast<std::int8_t>(coded.code(row, col));
}

TEST(Int8, EncodesTheDocumentedRow) {
  Matrix matrix(1, 2);
  matrix.values = {1.0F, -0.5F};
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Channel, matrix, kByAmax);
    EXPECT_NEAR(coded.effective[0], 0.00787402, 1e-8);
    EXPECT_EQ(signed_code(coded, 0, 0), 127);
    EXPECT_EQ(signed_code(coded, 0, 1), -64);
  });
}

TEST(Int8, TiesGoToTheEvenCode) {
  Matrix matrix(1, 33);
  for (int i = 0; i < 32; ++i) {
    matrix.values[static_cast<std::size_t>(i)] = static_cast<float>(i - 16) + 0.5F;
  }
  matrix.values[32] = 127.0F;  // makes the scale 1
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Channel, matrix, kByAmax);
    EXPECT_EQ(coded.effective[0], 1.0F);
    for (std::size_t i = 0; i < 32; ++i) {
      const int low = static_cast<int>(i) - 16;
      EXPECT_EQ(signed_code(coded, 0, i), low % 2 == 0 ? low : low + 1) << i;
    }
  });
}

TEST(Int8, ZerosHaveTheSmallestScale) {
  Matrix matrix(2, 3);
  matrix.values = {0, -0.0F, 0, 0, 1e-8F, 0};
  for_each_target([&] {
    const Coded rows = encode(SchemeId::kInt8Channel, matrix);
    EXPECT_EQ(rows.effective, std::vector<float>(2, 0x1p-23F));
    const Coded block = encode(SchemeId::kInt8Block, matrix);
    EXPECT_EQ(block.effective, std::vector<float>(1, 0x1p-23F));
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(block.byte(i), 0);
  });
}

TEST(Int8, BlocksHaveTheScaleOfTheirLargestMagnitude) {
  const Matrix matrix = random_matrix(200, 300, Shape::kHeavy, 6);
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Block, matrix, kByAmax);
    ASSERT_EQ(coded.effective.size(), 6U);
    float amax = 0;
    for (std::size_t r = 128; r < 200; ++r) {
      for (std::size_t c = 256; c < 300; ++c) {
        amax = std::max(amax, std::fabs(matrix.values[r * 300 + c]));
      }
    }
    EXPECT_EQ(coded.effective[5], amax / 127.0F);
  });
}

TEST(Int8, NeverEmitsMinus128ButReadsIt) {
  for (const AwkwardMatrix& awkward : awkward_matrices(4, 70)) {
    for (const SchemeId id : {SchemeId::kInt8Channel, SchemeId::kInt8Block}) {
      for_each_target([&] {
        const Coded coded = encode(id, awkward.matrix);
        for (std::size_t i = 0; i < coded.weight.size(); ++i) ASSERT_NE(coded.byte(i), 0x80);
      });
    }
  }
  const std::vector<std::byte> code(40, std::byte{0x80});
  const std::vector<float> scale{0.5F};
  const CodedMatrix run{.scheme = SchemeId::kInt8Channel,
                        .codes = code.data(),
                        .rows = 1,
                        .cols = 40,
                        .scales = scale,
                        .rows_per_matrix = 1,
                        .scale_cols = 1,
                        .block_rows = 1,
                        .block_cols = 40};
  for_each_target([&] {
    Matrix out(1, 40);
    decode(run, out.mutable_view());
    EXPECT_EQ(out.values, std::vector<float>(40, -64.0F));
  });
}

TEST(Int8, LargestFloatDoesNotDecodeToInfinity) {
  Matrix matrix(1, 2);
  matrix.values = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()};
  for_each_target([&] {
    const Matrix decoded = decode(encode(SchemeId::kInt8Channel, matrix));
    EXPECT_NEAR(decoded.values[0] / matrix.values[0], 1.0F, 0.01F);
    EXPECT_NEAR(decoded.values[1] / matrix.values[1], 1.0F, 0.01F);
  });
}

}  // namespace
}  // namespace ingot::quantize
