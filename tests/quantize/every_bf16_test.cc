// Every BF16 word through every encoder on every target, against the nearest code by search in
// double precision.

#include "formats/container/bfloat16.h"
#include "quantize/rows.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::CodeKind;
using formats::SchemeId;

double value_by_formula(CodeKind kind, int code) {
  if (kind == CodeKind::kInt8) return static_cast<std::int8_t>(code);
  const bool e2m1 = kind == CodeKind::kE2m1;
  const int mantissa_bits = e2m1 ? 1 : 3;
  const int bias = e2m1 ? 1 : 7;
  const int magnitude = e2m1 ? code & 7 : code & 0x7F;
  const int exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return code >= (e2m1 ? 8 : 128) ? -value : value;
}

/// The same of every code, computed once.
const double* code_values(CodeKind kind) {
  static std::map<CodeKind, std::array<double, 256>> known;
  const auto [at, is_new] = known.try_emplace(kind);
  for (int code = 0; is_new && code < 256; ++code)
    at->second[static_cast<std::size_t>(code)] = value_by_formula(kind, code);
  return at->second.data();
}

/// -8 to 7, stored with 8 added.
int nearest_int4(double quotient, float scale) {
  quotient = std::min(std::max(quotient, -8.0), 7.0);
  int best = 0;
  double least = std::fabs(quotient);
  for (int code = -8; code <= 7; ++code) {
    if (std::isinf(static_cast<float>(code) * scale)) continue;
    const double distance = std::fabs(quotient - code);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return best + 8;
}

/// The code of the magnitude that lies nearest, of two the even one; codes that decode to an
/// infinity do not count.
int nearest_code(CodeKind kind, float value, float scale) {
  // Rounded to float after a division in double: as a division in float.
  const double quotient =
      static_cast<float>(static_cast<double>(value) / static_cast<double>(scale));
  if (kind == CodeKind::kInt4) return nearest_int4(quotient, scale);
  const double* values = code_values(kind);
  const int n_magnitudes = kind == CodeKind::kE2m1 ? 8 : kind == CodeKind::kE4m3 ? 0x7F : 128;
  // Far beyond the codes all of them would be equally far away.
  const double magnitude = std::min(std::fabs(quotient), values[n_magnitudes - 1]);
  int best = 0;
  double least = magnitude;
  for (int code = 1; code < n_magnitudes; ++code) {
    if (std::isinf(static_cast<float>(values[code]) * scale)) break;
    const double distance = std::fabs(magnitude - values[code]);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  if (kind == CodeKind::kInt8) return (quotient < 0 ? -best : best) & 0xFF;
  if (kind == CodeKind::kE2m1) return value < 0 ? best + 8 : best;
  return std::signbit(value) ? best + 128 : best;
}

enum class Order { kAscending, kShuffled };

/// 512 rows of 128: all words, those that are not finite accepted as the rows of a matrix would be.
Matrix every_bf16(Order order) {
  std::vector<std::uint16_t> words(65536);
  std::iota(words.begin(), words.end(), std::uint16_t{0});
  if (order == Order::kShuffled) std::shuffle(words.begin(), words.end(), std::mt19937(1));
  Matrix matrix(512, 128);
  for (std::size_t i = 0; i < 65536; ++i) matrix.values[i] = formats::float_from_bf16(words[i]);
  settle_nonfinite(matrix.mutable_view(), 1, 0);
  return matrix;
}

std::vector<EncodeSetup> setups_of(SchemeId id) {
  switch (id) {
    case SchemeId::kFp8Block:
    case SchemeId::kFp8Channel:
      return {{},
              {.options = {.search = ScaleSearch::kAmax}},
              {.options = {.fp8_grid = Fp8Grid::kUe8m0}}};
    case SchemeId::kFp8Tensor:
      return {{}, {.global = 1.0F}, {.global = 0.37F}, {.global = 1e-30F}};
    case SchemeId::kNvfp4:
      return {{.options = {.search = ScaleSearch::kAmax}},
              {.options = {.search = ScaleSearch::kFourOverSix}, .divides = true},
              {},
              {.global = 0.125F}};
    case SchemeId::kInt4Group:
      return {{.options = {.search = ScaleSearch::kAmax}},
              {.options = {.search = ScaleSearch::kSigned}},
              {.options = {.search = ScaleSearch::kSigned}, .block = 64}};
    default:
      return {{}, {.options = {.search = ScaleSearch::kAmax}}};
  }
}

TEST(EveryBf16, BecomesTheNearestCodeOfItsGroup) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (!facts.quantized) continue;
    for (const Order order : {Order::kAscending, Order::kShuffled}) {
      const Matrix matrix = every_bf16(order);
      for (const EncodeSetup& setup : setups_of(facts.id)) {
        SCOPED_TRACE(facts.name);
        std::vector<int> expected;
        std::vector<std::byte> scales;
        for_each_target([&] {
          const Coded coded = encode(facts.id, matrix, setup);
          if (expected.empty()) {
            scales = coded.scales;
            for (std::size_t i = 0; i < 65536; ++i) {
              const std::size_t row = i / 128;
              const std::size_t group =
                  row / coded.block_rows * coded.scale_cols + i % 128 / coded.block_cols;
              const float scale = coded.effective[group];
              ASSERT_TRUE(std::isfinite(scale) &&
                          (scale > 0 || (facts.has_signed_scales && scale < 0)));
              expected.push_back(nearest_code(facts.code, matrix.values[i], scale));
            }
          }
          EXPECT_TRUE(coded.scales == scales);
          std::size_t i = 0;
          while (i < 65536 && coded.code(i / 128, i % 128) == expected[i]) ++i;
          ASSERT_EQ(i, 65536U) << "value " << matrix.values[i % 65536] << " has another code";
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(EveryBf16, KeepsBf16WordsAndF32Values) {
  Matrix matrix(256, 256);
  for (std::size_t i = 0; i < 65536; ++i) {
    matrix.values[i] = formats::float_from_bf16(static_cast<std::uint16_t>(i));
  }
  for_each_target([&] {
    const Coded words = encode(SchemeId::kBf16, matrix);
    const Coded floats = encode(SchemeId::kF32, matrix);
    for (std::size_t i = 0; i < 65536; ++i) {
      const bool is_nan = (i & 0x7FFFU) > 0x7F80U;
      ASSERT_EQ(words.byte(2 * i) | words.byte(2 * i + 1) << 8,
                static_cast<int>(is_nan ? i | 0x40U : i));
    }
    EXPECT_EQ(std::memcmp(floats.weight.data(), matrix.values.data(), floats.weight.size()), 0);
  });
}

TEST(EveryBf16, BecomesTheNearestF16AndOverflowsAreCounted) {
  Matrix matrix(256, 256);
  for (std::size_t i = 0; i < 65536; ++i) {
    matrix.values[i] = formats::float_from_bf16(static_cast<std::uint16_t>(i));
  }
  std::uint64_t overflows = 0;
  std::uint64_t first = 0;
  std::vector<int> expected;
  for (std::size_t i = 0; i < 65536; ++i) {
    const double magnitude = std::fabs(static_cast<double>(matrix.values[i]));
    const int sign = std::signbit(matrix.values[i]) ? 0x8000 : 0;
    if (std::isnan(magnitude)) {
      expected.push_back(-1);
      continue;
    }
    // Multiples of the last place, which for subnormals is 2^-24.
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int last_place = std::max(exponent - 11, -24);
    const double rounded =
        std::ldexp(std::nearbyint(std::ldexp(magnitude, -last_place)), last_place);
    if (rounded >= 65536) {
      if (std::isfinite(magnitude) && overflows++ == 0) first = i;
      expected.push_back(sign | 0x7C00);
    } else if (rounded < 0x1p-14) {
      expected.push_back(sign | static_cast<int>(rounded * 0x1p24));
    } else {
      std::frexp(rounded, &exponent);
      const int fraction = static_cast<int>(std::ldexp(rounded, 11 - exponent)) - 1024;
      expected.push_back(sign | (exponent + 14) << 10 | fraction);
    }
  }
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kF16, matrix);
    for (std::size_t i = 0; i < 65536; ++i) {
      const int word = coded.byte(2 * i) | coded.byte(2 * i + 1) << 8;
      if (expected[i] < 0) {
        ASSERT_GT(word & 0x7FFF, 0x7C00);
      } else {
        ASSERT_EQ(word, expected[i]) << matrix.values[i];
      }
    }
    EXPECT_EQ(coded.faults.overflows, overflows);
    EXPECT_EQ(coded.faults.first_overflow, first);
  });
}

}  // namespace
}  // namespace ingot::quantize
