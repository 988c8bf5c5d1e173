// Exponentials, softmax and sums: accurate, and the same bits on every SIMD target.

#include "inference/kernels/vector_math.h"

#include "formats/container/bfloat16.h"
#include "tests/inference/kernels/stored_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using quantize::for_each_target;

constexpr std::size_t kLengths[] = {0, 1, 7, 15, 16, 17, 31, 33, 64, 100, 1000};

std::vector<float> random_values(std::size_t n, Contents contents, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, 4.0F);
  std::vector<float> values(n);
  for (float& value : values) {
    value = normal(random);
    if (contents == Contents::kAnything && random() % 8 == 0) {
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    }
  }
  return values;
}

// PyTorch's gelu(approximate="tanh").
TEST(Gelu, HasTheValuesOfItsTanhForm) {
  EXPECT_EQ(gelu_f32(0.0F), 0.0F);
  EXPECT_NEAR(gelu_f32(0.5F), 0.34571401, 1e-7);
  EXPECT_NEAR(gelu_f32(1.0F), 0.84119199, 1e-7);
  EXPECT_NEAR(gelu_f32(-1.0F), -0.15880801, 1e-7);
  EXPECT_EQ(gelu_f32(20.0F), 20.0F);
  EXPECT_EQ(gelu_f32(-20.0F), 0.0F);
}

TEST(SoftCap, BoundsAndKeepsSmallValues) {
  EXPECT_EQ(soft_capped(1e9F, 30), 30.0F);
  EXPECT_EQ(soft_capped(-1e9F, 30), -30.0F);
  EXPECT_NEAR(soft_capped(30.0F, 30), 30 * std::tanh(1.0), 1e-5);
  EXPECT_NEAR(soft_capped(0.125F, 50), 0.125F, 1e-6);
}

TEST(Exponential, IsWithinTwoUnitsOfTheLastPlace) {
  for (double x = -103.5; x < 88.7; x += 0.00137) {
    const auto argument = static_cast<float>(x);
    const double wanted = std::exp(double{argument});
    const auto nearest = static_cast<float>(wanted);
    const double unit =
        std::max(double{std::nextafter(nearest, INFINITY)} - double{nearest}, 0x1p-149);
    EXPECT_LE(std::abs(double{exp_f32(argument)} - wanted), 2 * unit) << argument;
  }
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
}

TEST(Exponential, HasItsLimits) {
  EXPECT_EQ(exp_f32(-200.0F), 0.0F);
  EXPECT_EQ(exp_f32(-INFINITY), 0.0F);
  EXPECT_EQ(exp_f32(INFINITY), INFINITY);
  EXPECT_EQ(exp_f32(89.0F), INFINITY);
  EXPECT_TRUE(std::isnan(exp_f32(NAN)));
  EXPECT_EQ(sigmoid_f32(0.0F), 0.5F);
  EXPECT_EQ(sigmoid_f32(-INFINITY), 0.0F);
  EXPECT_EQ(sigmoid_f32(INFINITY), 1.0F);
}

// Through the softmax of pairs (0, x): its second value is e^x / (1 + e^x), for x from below.
TEST(Exponential, EveryTargetTakesTheSameSteps) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  const std::vector<float> ones(values.size(), 1.0F);
  for (const bool round : {false, true}) {
    std::vector<float> wanted(values.size());
    scalar::silu_multiply(values, ones, wanted, round);
    for_each_target([&] {
      std::vector<float> is(values.size());
      silu_multiply(values, ones, is, round);
      EXPECT_TRUE(same_bits(is, wanted)) << round;
    });
  }
}

TEST(Softmax, IsThatOfDoubleArithmetic) {
  std::mt19937 random(1);
  for (const std::size_t n : kLengths) {
    const std::vector<float> x = random_values(n, Contents::kOrdinary, random);
    std::vector<float> is = x;
    softmax(is);
    double sum = 0, total = 0;
    for (const float value : x) sum += std::exp(double{value});
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(double{is[i]}, std::exp(double{x[i]}) / sum, 1e-6) << n;
      total += double{is[i]};
    }
    if (n > 0) {
      EXPECT_NEAR(total, 1.0, 1e-5);
    }
  }
}

TEST(Softmax, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(2);
  for (const std::size_t n : kLengths) {
    for (const Contents contents : {Contents::kOrdinary, Contents::kAnything}) {
      const std::vector<float> x = random_values(n, contents, random);
      std::vector<float> wanted = x;
      scalar::softmax(wanted);
      for_each_target([&] {
        std::vector<float> is = x;
        softmax(is);
        EXPECT_TRUE(same_bits(is, wanted)) << n;
      });
    }
  }
}

TEST(SiluMultiply, RoundsSiluAndProductToBf16) {
  const std::array gate = {1.0F, -2.0F, 0.3F}, up = {3.0F, 1.0F, -7.7F};
  std::array<float, 3> exact{}, rounded{};
  silu_multiply(gate, up, exact, false);
  silu_multiply(gate, up, rounded, true);
  const auto to_bf16 = [](float value) {
    return formats::float_from_bf16(formats::bf16_from_float(value));
  };
  for (std::size_t i = 0; i < 3; ++i) {
    const double silu = double{gate[i]} / (1 + std::exp(-double{gate[i]}));
    EXPECT_NEAR(double{exact[i]}, silu * double{up[i]}, 1e-6);
    EXPECT_EQ(rounded[i], to_bf16(to_bf16(static_cast<float>(silu)) * up[i]));
  }
}

TEST(SiluMultiply, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(3);
  for (const std::size_t n : kLengths) {
    const std::vector<float> gate = random_values(n, Contents::kAnything, random);
    const std::vector<float> up = random_values(n, Contents::kAnything, random);
    for (const bool round : {false, true}) {
      std::vector<float> wanted(n);
      scalar::silu_multiply(gate, up, wanted, round);
      for_each_target([&] {
        std::vector<float> is = gate;
        silu_multiply(is, up, is, round);
        EXPECT_TRUE(same_bits(is, wanted)) << n;
      });
    }
  }
}

TEST(Dot, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(4);
  for (const std::size_t n : kLengths) {
    for (const Contents contents : {Contents::kOrdinary, Contents::kAnything}) {
      const std::vector<float> a = random_values(n, contents, random);
      const std::vector<float> b = random_values(n, contents, random);
      const float wanted = scalar::dot(a, b), squares = scalar::sum_of_squares(a);
      for_each_target([&] {
        EXPECT_EQ(bits_of(dot(a, b)), bits_of(wanted)) << n;
        EXPECT_EQ(bits_of(sum_of_squares(a)), bits_of(squares)) << n;
      });
    }
  }
}

TEST(Dot, AddsInSixteenLanesThatFoldByHalves) {
  // Lane 0 loses the 1 to 2^24; lane 1 does not.
  std::vector<float> a(32, 0.0F);
  a[0] = 0x1p24F, a[16] = 1.0F, a[1] = -0x1p24F, a[17] = 3.0F;
  const std::vector<float> ones(32, 1.0F);
  EXPECT_EQ(dot(a, ones), 0x1p24F + (-0x1p24F + 3.0F));
}

}  // namespace
}  // namespace ingot::inference
