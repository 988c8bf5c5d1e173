#include "formats/container/bfloat16.h"
#include "quantize/kernels/codes.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

float as_bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

EncodeSetup by(ScaleSearch search, bool divides = false) {
  return {.options = {.search = search}, .divides = divides};
}

/// The documented block, with an element of 0.5 in a second one so that this is the tensor's amax.
Matrix documented_matrix() {
  Matrix matrix(1, 32);
  for (int i = 0; i < 16; ++i) {
    matrix.values[static_cast<std::size_t>(i)] = as_bf16(static_cast<float>(i - 7) / 100);
  }
  matrix.values[20] = 0.5F;
  return matrix;
}

TEST(Nvfp4, EncodesTheDocumentedBlockInBothConventions) {
  const std::array<int, 16> codes{15, 14, 14, 13, 12, 11, 9, 0, 1, 3, 4, 5, 6, 6, 7, 7};
  const std::array<int, 8> packed{0xEF, 0xDE, 0xBC, 0x09, 0x31, 0x54, 0x66, 0x77};
  for_each_target([&] {
    const Coded multiplied = encode(SchemeId::kNvfp4, documented_matrix(), by(ScaleSearch::kAmax));
    EXPECT_EQ(bits_of(multiplied.global), 0x39430C31U);
    EXPECT_EQ(multiplied.scales[0], std::byte{0x69});
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(multiplied.code(0, i), codes[i]) << i;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(multiplied.byte(i), packed[i]) << i;
    const Matrix decoded = decode(multiplied);
    EXPECT_NEAR(decoded.values[0], -0.0803571, 5e-8);
    EXPECT_NEAR(decoded.values[15], 0.0803571, 5e-8);

    const Coded divided =
        encode(SchemeId::kNvfp4, documented_matrix(), by(ScaleSearch::kAmax, true));
    EXPECT_EQ(divided.global, 5376.0F);
    EXPECT_EQ(divided.scales[0], std::byte{0x69});
  });
}

TEST(Nvfp4, TiesGoToTheEvenCode) {
  // With 6 in the block and a global scale of 1 the scale of the block is 1.
  const std::array<std::pair<float, int>, 16> ties{{{0.25F, 0},
                                                    {0.75F, 2},
                                                    {1.25F, 2},
                                                    {1.75F, 4},
                                                    {2.5F, 4},
                                                    {3.5F, 6},
                                                    {5.0F, 6},
                                                    {6.0F, 7},
                                                    {-0.25F, 8},
                                                    {-0.75F, 10},
                                                    {-1.25F, 10},
                                                    {-1.75F, 12},
                                                    {-2.5F, 12},
                                                    {-3.5F, 14},
                                                    {-5.0F, 14},
                                                    {-0.0F, 0}}};
  const std::array<int, 7> above{1, 2, 3, 4, 5, 6, 7};
  Matrix matrix(3, 16);
  for (std::size_t i = 0; i < 16; ++i) matrix.values[i] = ties[i].first;
  for (std::size_t i = 0; i < 7; ++i) {
    const float tie = ties[i].first;
    matrix.values[16 + i] = std::nextafter(tie, 100.0F);
    matrix.values[32 + i] = -std::nextafter(tie, 0.0F);
  }
  matrix.values[16 + 15] = matrix.values[32 + 15] = 6.0F;
  EncodeSetup setup = by(ScaleSearch::kAmax);
  setup.global = 1;
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kNvfp4, matrix, setup);
    EXPECT_EQ(coded.effective, std::vector<float>(3, 1.0F));
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(coded.code(0, i), ties[i].second) << i;
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(coded.code(1, i), above[i]) << i;
      EXPECT_EQ(coded.code(2, i), (above[i] - 1) + 8) << i;
    }
  });
}

TEST(Nvfp4, CodesDecodeToTheirScaledValues) {
  const std::array<float, 8> magnitudes{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  std::vector<std::byte> bytes;
  for (int code = 0; code < 256; ++code) bytes.push_back(static_cast<std::byte>(code));
  std::vector<float> scales(32);
  for (std::size_t i = 0; i < 32; ++i) scales[i] = static_cast<float>(i + 1) * 0.37F;
  const CodedMatrix run{.scheme = SchemeId::kNvfp4,
                        .codes = bytes.data(),
                        .rows = 1,
                        .cols = 512,
                        .scales = scales,
                        .rows_per_matrix = 1,
                        .scale_cols = 32,
                        .block_rows = 1,
                        .block_cols = 16};
  for_each_target([&] {
    Matrix out(1, 512);
    decode(run, out.mutable_view());
    for (std::size_t i = 0; i < 512; ++i) {
      const std::size_t code = i % 2 == 0 ? i / 2 % 16 : i / 2 / 16;
      const float expected = (code >= 8 ? -1.0F : 1.0F) * magnitudes[code % 8] * scales[i / 16];
      ASSERT_EQ(bits_of(out.values[i]), bits_of(expected)) << i;
    }
  });
}

TEST(Nvfp4, GlobalScaleIsTheQuotientOfItsConvention) {
  const Scheme& nvfp4 = *find_scheme(SchemeId::kNvfp4);
  const EncodeOptions amax{.search = ScaleSearch::kAmax};
  EXPECT_EQ(nvfp4.global(0.3F, amax, false), 0.3F / 2688.0F);
  EXPECT_EQ(nvfp4.global(0.3F, amax, true), 2688.0F / 0.3F);
  for (const ScaleSearch search : {ScaleSearch::kFourOverSix, ScaleSearch::kMse}) {
    EXPECT_EQ(nvfp4.global(0.3F, {.search = search}, false), 0.3F / 1536.0F);
    EXPECT_EQ(nvfp4.global(0.3F, {.search = search}, true), 1536.0F / 0.3F);
  }
}

TEST(Nvfp4, GlobalScaleIsNeverZeroOrInfinite) {
  const Scheme& nvfp4 = *find_scheme(SchemeId::kNvfp4);
  for (const float amax :
       {0.0F, 0x1p-149F, 0x1p-140F, 0x1p-126F, std::numeric_limits<float>::max()}) {
    for (const bool divides : {false, true}) {
      const float global = nvfp4.global(amax, {}, divides);
      EXPECT_TRUE(global > 0 && std::isfinite(global)) << amax;
    }
  }
  EXPECT_EQ(nvfp4.global(0, {}, false), 1.0F);
  EXPECT_EQ(nvfp4.global(0, {}, true), 1.0F);
}

TEST(Nvfp4, ZeroBlocksHaveScaleOne) {
  Matrix matrix(2, 64);
  matrix.values[20] = 3.0F;
  matrix.values[40] = -0.0F;
  for (const ScaleSearch search :
       {ScaleSearch::kAmax, ScaleSearch::kFourOverSix, ScaleSearch::kMse}) {
    for_each_target([&] {
      const Coded coded = encode(SchemeId::kNvfp4, matrix, by(search));
      for (std::size_t block = 0; block < 8; ++block) {
        if (block == 1) continue;
        EXPECT_EQ(coded.scales[block], std::byte{0x38});
        for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(coded.byte(block * 8 + i), 0);
      }
      EXPECT_EQ(decode(coded).values[20], 3.0F);
    });
  }
}

TEST(Nvfp4, SmallBlocksKeepTheSmallestScale) {
  Matrix matrix(1, 32);
  matrix.values[0] = 1000.0F;
  for (std::size_t i = 16; i < 32; ++i) matrix.values[i] = -1e-7F;
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kNvfp4, matrix, by(ScaleSearch::kAmax));
    EXPECT_EQ(coded.scales[1], std::byte{0x01});
    for (std::size_t i = 16; i < 32; ++i) EXPECT_EQ(coded.code(0, i), 8);  // rounded to -0
  });
}

TEST(Nvfp4, SmallestTensorsHaveNonzeroScales) {
  for (const float amax : {0x1p-149F, 0x1p-140F, 0x1p-138F, 0x1.8p-130F}) {
    Matrix matrix(1, 48);
    matrix.values[0] = amax;
    matrix.values[17] = 0x1p-149F;
    for (const bool divides : {false, true}) {
      for (const ScaleSearch search : {ScaleSearch::kAmax, ScaleSearch::kMse}) {
        for_each_target([&] {
          const Coded coded = encode(SchemeId::kNvfp4, matrix, by(search, divides));
          for (const float scale : coded.effective) EXPECT_GT(scale, 0.0F) << amax;
        });
      }
    }
  }
}

TEST(Nvfp4, LargestFloatsDoNotDecodeToInfinity) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {largest, 0x1.FEp127F, 0x1p127F}) {
    Matrix matrix(1, 16);
    for (std::size_t i = 0; i < 16; ++i) {
      matrix.values[i] = (i % 2 != 0 ? -value : value) / static_cast<float>(i + 1);
    }
    for (const ScaleSearch search :
         {ScaleSearch::kAmax, ScaleSearch::kFourOverSix, ScaleSearch::kMse}) {
      for_each_target([&] {
        for (const bool divides : {false, true}) {
          const Matrix decoded = decode(encode(SchemeId::kNvfp4, matrix, by(search, divides)));
          for (std::size_t i = 0; i < 16; ++i) {
            EXPECT_TRUE(std::isfinite(decoded.values[i]));
            EXPECT_NEAR(decoded.values[i] / value, matrix.values[i] / value, 0.17);
          }
        }
      });
    }
  }
}

Matrix group_of(float amax) {
  Matrix matrix(1, 32);
  for (std::size_t i = 0; i < 32; ++i) matrix.values[i] = amax * static_cast<float>(i) / 31.0F;
  matrix.values[31] = -amax;
  return matrix;
}

/// By the definition: 127 + e - c, after a mantissa from 1.75 on has been rounded up.
int expected_byte(float amax, int largest_exponent) {
  if (amax == 0) return 127;
  int exponent = 0;
  const double mantissa = 2 * std::frexp(static_cast<double>(amax), &exponent);
  --exponent;
  if (mantissa >= 1.75) ++exponent;
  return std::min(std::max(127 + exponent - largest_exponent, 0), 254);
}

TEST(Mxfp, ScaleFollowsTheExponentRule) {
  std::vector<float> amaxes{0,
                            0x1p-149F,
                            0x1p-127F,
                            0x1.BFFFFEp-127F,
                            0x1.FFFFFCp-127F,
                            std::numeric_limits<float>::max()};
  for (int exponent = -126; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0F, 1.5F, 1.7499999F, 1.75F, 1.9999999F}) {
      amaxes.push_back(std::ldexp(mantissa, exponent));
    }
  }
  for_each_target([&] {
    for (const float amax : amaxes) {
      const Coded fp4 = encode(SchemeId::kMxfp4, group_of(amax), by(ScaleSearch::kAmax));
      ASSERT_EQ(std::to_integer<int>(fp4.scales[0]), expected_byte(amax, 2)) << amax;
      const Coded fp8 = encode(SchemeId::kMxfp8, group_of(amax));
      ASSERT_EQ(std::to_integer<int>(fp8.scales[0]), expected_byte(amax, 8)) << amax;
    }
  });
}

TEST(Mxfp, MagnitudesAboveTheLargestCodeSaturate) {
  Matrix matrix = group_of(0);
  matrix.values[3] = 1.7F;  // scale 2^-2: 6.8 becomes 6
  matrix.values[4] = -1.74F;
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kMxfp4, matrix, by(ScaleSearch::kAmax));
    EXPECT_EQ(coded.effective[0], 0.25F);
    EXPECT_EQ(coded.code(0, 3), 7);
    EXPECT_EQ(coded.code(0, 4), 15);
    EXPECT_EQ(decode(coded).values[3], 1.5F);
  });
}

TEST(Mxfp, RepresentableGroupsComeBackExactly) {
  Matrix matrix(4, 64);
  const float magnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    const float sign = i / 8 % 2 == 0 ? 1.0F : -1.0F;
    matrix.values[i] =
        sign * magnitudes[i % 8] * std::ldexp(1.0F, static_cast<int>(i / 32) * 9 - 30);
  }
  for_each_target([&] {
    for (const SchemeId id : {SchemeId::kMxfp4, SchemeId::kMxfp8}) {
      EXPECT_EQ(decode(encode(id, matrix)).values, matrix.values);
    }
  });
}

TEST(Mxfp, LargestFloatsDoNotDecodeToInfinity) {
  for (const SchemeId id : {SchemeId::kMxfp4, SchemeId::kMxfp8}) {
    for (const float value : {std::numeric_limits<float>::max(), 0x1.FEp127F}) {
      Matrix matrix(1, 32);
      for (std::size_t i = 0; i < 32; ++i) matrix.values[i] = i % 2 == 0 ? value : -value / 3;
      for_each_target([&] {
        const Matrix decoded = decode(encode(id, matrix));
        for (const float x : decoded.values) EXPECT_TRUE(std::isfinite(x));
        EXPECT_GT(decoded.values[0], value / 2);
        EXPECT_LT(decoded.values[1], -value / 5);
      });
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
