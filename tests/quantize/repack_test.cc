#include "quantize/repack.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

/// Rows of MXFP4 blocks with random codes and the scales 2^exponent.
Coded mxfp4_of(const std::vector<int>& exponents, std::size_t rows) {
  std::mt19937 random(2);
  Coded coded{.id = SchemeId::kMxfp4,
              .rows = rows,
              .cols = exponents.size() / rows * 32,
              .block_rows = 1,
              .block_cols = 32,
              .scale_cols = exponents.size() / rows};
  for (std::size_t i = 0; i < exponents.size() * 16; ++i) {
    coded.weight.push_back(static_cast<std::byte>(random()));
  }
  for (const int exponent : exponents) coded.effective.push_back(std::ldexp(1.0F, exponent));
  return coded;
}

struct Repacked {
  Coded coded;
  std::uint64_t kept = 0;
};

Repacked repack(const Coded& from, bool divides) {
  const float global = repacked_global(largest_mxfp4_scale(from.run()), divides);
  Repacked to{.coded = {.id = SchemeId::kNvfp4,
                        .rows = from.rows,
                        .cols = from.cols,
                        .block_rows = 1,
                        .block_cols = 16,
                        .scale_cols = from.scale_cols * 2,
                        .global = global,
                        .divides = divides}};
  to.coded.weight.resize(from.weight.size());
  to.coded.scales.resize(from.rows * to.coded.scale_cols);
  to.kept = repack_mxfp4_as_nvfp4(from.run(), global, divides, {},
                                  {.weight = to.coded.weight.data(),
                                   .weight_stride = from.cols / 2,
                                   .scales = to.coded.scales.data(),
                                   .scale_stride = to.coded.scale_cols});
  for (const std::byte& code : to.coded.scales) {
    const auto scale = static_cast<float>(stored_scale(formats::DType::kF8E4M3, &code));
    to.coded.effective.push_back(divides ? scale / global : scale * global);
  }
  return to;
}

TEST(Repack, KeepsValuesWithinSeventeenExponents) {
  for (const int top : {-110, -20, 0, 40, 127}) {
    for (const bool divides : {false, true}) {
      std::vector<int> exponents;
      for (int below = 0; below <= 17; ++below) exponents.push_back(std::max(top - below, -127));
      const Coded from = mxfp4_of(exponents, 2);
      for_each_target([&] {
        const Repacked to = repack(from, divides);
        EXPECT_EQ(to.kept, 36U) << top;
        EXPECT_TRUE(to.coded.weight == from.weight);
        EXPECT_EQ(decode(to.coded).values, decode(from).values);
        for (const std::byte scale : to.coded.scales) {
          EXPECT_NE(scale, std::byte{0});
          EXPECT_NE(scale, std::byte{0x7F});
        }
      });
    }
  }
}

TEST(Repack, EncodesAnewWhatLiesBelow) {
  const Coded from = mxfp4_of({0, -17, -18, -40}, 1);
  for (const bool divides : {false, true}) {
    const Repacked to = repack(from, divides);
    EXPECT_EQ(to.kept, 4U);
    const Matrix before = decode(from);
    const Matrix after = decode(to.coded);
    for (std::size_t i = 0; i < 128; ++i) {
      if (i < 64) {
        EXPECT_EQ(after.values[i], before.values[i]);
      }
      // The smallest scale left is 2^-17, whose largest step is twice that.
      EXPECT_LE(std::fabs(after.values[i] - before.values[i]), 0x1p-17F) << i;
    }
  }
}

TEST(Repack, ZeroBlocksDoNotDecideTheGlobal) {
  Coded from = mxfp4_of({90, 0, -17, 127}, 1);
  for (std::size_t i = 0; i < 16; ++i) {
    from.weight[i] = std::byte{0x08};  // 0 and -0
    from.weight[48 + i] = std::byte{0x80};
  }
  from.weight[16] = from.weight[32] = std::byte{0x21};
  EXPECT_EQ(largest_mxfp4_scale(from.run()), 1.0F);
  for (const bool divides : {false, true}) {
    const Repacked to = repack(from, divides);
    EXPECT_EQ(to.coded.global, divides ? 0x1p8F : 0x1p-8F);
    EXPECT_EQ(decode(to.coded).values, decode(from).values);
  }
}

TEST(Repack, GlobalScaleIsExactInBothConventions) {
  EXPECT_EQ(repacked_global(0, false), 1.0F);
  EXPECT_EQ(repacked_global(0, true), 1.0F);
  for (int exponent = -127; exponent <= 127; ++exponent) {
    const float scale = std::ldexp(1.0F, exponent);
    EXPECT_EQ(repacked_global(scale, false), std::ldexp(1.0F, exponent - 8));
    const float divisor = repacked_global(scale, true);
    EXPECT_EQ(divisor, std::ldexp(1.0F, std::min(8 - exponent, 127)));
  }
}

TEST(Repack, TensorOfZerosHasTheScaleOne) {
  Coded from = mxfp4_of({0, 5}, 1);
  for (std::byte& pair : from.weight) pair = std::byte{0};
  EXPECT_EQ(largest_mxfp4_scale(from.run()), 0.0F);
  const Repacked to = repack(from, false);
  EXPECT_EQ(to.coded.global, 1.0F);
  EXPECT_EQ(decode(to.coded).values, std::vector<float>(64, 0.0F));
}

}  // namespace
}  // namespace ingot::quantize
