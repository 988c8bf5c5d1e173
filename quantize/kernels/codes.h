#pragma once

// The kinds of codes, and the value of every element of a coded matrix: the specification of all
// vector kernels. A kind is a class here, a place in `Codes`, and its lanes in lanes-inl.h and
// code_encode_simd.cc; one that is only read is a class and a place in `ReadCodes`.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "formats/container/float8.h"
#include "formats/container/other_float8.h"
#include "quantize/coded_matrix.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// Magnitudes of the E2M1 codes 0-7; bit 3 of a code is the sign. Source: docs/formats.md,
/// "Quantized schemes".
inline constexpr std::array<float, 8> kE2m1Magnitudes{0.0F, 0.5F, 1.0F, 1.5F,
                                                      2.0F, 3.0F, 4.0F, 6.0F};

/// The code of a magnitude: nearest, ties to the even code, 6 from 5 on.
constexpr std::uint8_t e2m1_from_magnitude(float a) {
  const int code = int{a > 0.25F} + int{a >= 0.75F} + int{a > 1.25F} + int{a >= 1.75F} +
                   int{a > 2.5F} + int{a >= 3.5F} + int{a > 5.0F};
  return static_cast<std::uint8_t>(code);
}

// Each kind has its bits; whether it has zero points; `value` of a code under the zero point of its
// group; `nearest`, the code of value / scale: to nearest, ties to even, saturating; and its steps:
// two neighbours from x on are 2^max(floor(log2 |x|), log2 kFloor) x 2^-kMantissaBits apart.

struct E4m3 {
  static constexpr formats::CodeKind kKind = formats::CodeKind::kE4m3;
  static constexpr std::uint32_t kBits = 8;
  static constexpr bool kHasZero = false;
  static constexpr int kMantissaBits = 3;
  static constexpr float kFloor = 0x1p-6F;
  static constexpr float kLargest = 448;
  static constexpr float value(std::uint8_t code, std::uint8_t /*zero*/ = 0) {
    return formats::kE4m3Values[code];
  }
  /// Values that round to zero, and -0, keep their sign.
  static std::uint8_t nearest(float /*value*/, float quotient) {
    return formats::e4m3_from_float(quotient);
  }
};

/// INT8 in two's complement. -128 is never written.
struct Int8 {
  static constexpr formats::CodeKind kKind = formats::CodeKind::kInt8;
  static constexpr std::uint32_t kBits = 8;
  static constexpr bool kHasZero = false;
  static constexpr int kMantissaBits = 7;  // all steps are 1
  static constexpr float kFloor = 0x1p7F;
  static constexpr float kLargest = 127;
  static constexpr float value(std::uint8_t code, std::uint8_t /*zero*/ = 0) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
  static std::uint8_t nearest(float /*value*/, float quotient) {
    const float rounded = std::nearbyint(std::clamp(quotient, -127.0F, 127.0F));
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(rounded));
  }
};

struct E2m1 {
  static constexpr formats::CodeKind kKind = formats::CodeKind::kE2m1;
  static constexpr std::uint32_t kBits = 4;
  static constexpr bool kHasZero = false;
  static constexpr int kMantissaBits = 1;
  static constexpr float kFloor = 1;
  static constexpr float kLargest = 6;
  /// Code 8 is -0.
  static constexpr float value(std::uint8_t code, std::uint8_t /*zero*/ = 0) {
    const auto magnitude = std::bit_cast<std::uint32_t>(kE2m1Magnitudes[code & 7U]);
    return std::bit_cast<float>(magnitude | (code & 8U) << 28);
  }
  /// Negative values that round to zero become code 8, -0 becomes code 0.
  static std::uint8_t nearest(float value, float quotient) {
    const unsigned sign = value < 0 ? 8 : 0;
    return static_cast<std::uint8_t>(e2m1_from_magnitude(std::fabs(quotient)) | sign);
  }
};

/// 4-bit integers 0 to 15, less the zero point; without one -8 to 7 are written, with 8 added.
struct Int4 {
  static constexpr formats::CodeKind kKind = formats::CodeKind::kInt4;
  static constexpr std::uint32_t kBits = 4;
  static constexpr bool kHasZero = true;
  static constexpr int kMantissaBits = 4;  // all steps are 1, up to the 15 that a zero point leaves
  static constexpr float kFloor = 0x1p4F;
  static constexpr float kLargest = 7;
  static constexpr float value(std::uint8_t code, std::uint8_t zero = kInt4Zero) {
    return static_cast<float>(int{code} - int{zero});
  }
  static std::uint8_t nearest(float /*value*/, float quotient, std::uint8_t zero = kInt4Zero) {
    const float rounded = std::nearbyint(std::clamp(quotient, value(0, zero), value(15, zero)));
    return static_cast<std::uint8_t>(static_cast<int>(rounded) + int{zero});
  }
};

/// FP8 of another kind than E4M3. -0 keeps its sign, NaN too.
template <formats::CodeKind kOf, std::size_t kRow>
struct OtherFloat8 {
  static constexpr formats::CodeKind kKind = kOf;
  static constexpr formats::Float8Kind kFacts = formats::kFloat8Kinds[kRow];
  static constexpr std::array<float, 256> kValues = formats::float8_values(kFacts);
  static constexpr std::uint32_t kBits = 8;
  static constexpr int kMantissaBits = static_cast<int>(kFacts.mantissa_bits);
  static constexpr float kFloor = kValues[1 << kMantissaBits];
  static constexpr float kLargest = kValues[kFacts.has_infinity ? 0x7B : 0x7F];
  static constexpr float value(std::uint8_t code, std::uint8_t /*zero*/ = 0) {
    return kValues[code];
  }
};
using E5m2 = OtherFloat8<formats::CodeKind::kE5m2, 0>;
using E4m3Fnuz = OtherFloat8<formats::CodeKind::kE4m3Fnuz, 1>;
using E5m2Fnuz = OtherFloat8<formats::CodeKind::kE5m2Fnuz, 2>;

/// INT8 less a zero point, both in two's complement.
struct Int8Zero {
  static constexpr formats::CodeKind kKind = formats::CodeKind::kInt8Zero;
  static constexpr std::uint32_t kBits = 8;
  static constexpr int kMantissaBits = 8;  // all steps are 1, up to 255
  static constexpr float kFloor = 0x1p8F;
  static constexpr float kLargest = 127;
  static constexpr float value(std::uint8_t code, std::uint8_t zero) {
    return Int8::value(code) - Int8::value(zero);
  }
};

using Codes = std::tuple<E4m3, Int8, E2m1, Int4>;
using ReadCodes = std::tuple<E4m3, Int8, E2m1, Int4, E5m2, E4m3Fnuz, E5m2Fnuz, Int8Zero>;

/// Calls body(Code()) with the class of a kind, which is in the list.
template <class List = Codes, class Body>
void with_code(formats::CodeKind kind, const Body& body) {
  const auto call = [&](auto... code) {
    return ((kind == decltype(code)::kKind && (body(code), true)) || ...);
  };
  const bool is_known = std::apply(call, List());
  INGOT_CHECK(is_known);
}

/// A kind of code as numbers, for those that need no kernel.
struct CodeFacts {
  std::uint32_t bits;
  float floor, step_factor;  ///< steps do not shrink below `floor`; 2^-kMantissaBits
  float largest;             ///< largest magnitude that is written
  float (*value)(std::uint8_t code, std::uint8_t zero);

  /// Half the distance of the two largest codes: an error above it x scale means that the value
  /// was cut off at the largest code.
  [[nodiscard]] float half_top_step() const {
    return std::max(std::bit_cast<float>(std::bit_cast<std::uint32_t>(largest) & 0x7F800000U),
                    floor) *
           step_factor / 2;
  }
  /// True if all steps are the same: codes are integers, not sign and magnitude.
  [[nodiscard]] bool is_even() const { return floor > largest; }
};

inline CodeFacts code_facts(formats::CodeKind kind) {
  CodeFacts facts{};
  with_code<ReadCodes>(kind, [&](auto code) {
    using Code = decltype(code);
    facts = {.bits = Code::kBits,
             .floor = Code::kFloor,
             .step_factor = 1.0F / static_cast<float>(1U << Code::kMantissaBits),
             .largest = Code::kLargest,
             .value = Code::value};
  });
  return facts;
}

/// Code `c` of a row; the first one is in the lowest bits.
template <std::uint32_t kBits>
constexpr std::uint8_t code_at(const std::byte* row, std::size_t c) {
  if constexpr (kBits == 8) return std::to_integer<std::uint8_t>(row[c]);
  const std::size_t bit = c * kBits;
  unsigned code = std::to_integer<unsigned>(row[bit / 8]) >> bit % 8;
  if (8 % kBits != 0 && bit % 8 + kBits > 8)
    code |= std::to_integer<unsigned>(row[bit / 8 + 1]) << (8 - bit % 8);
  return static_cast<std::uint8_t>(code & ((1U << kBits) - 1));
}

/// Sets code `c` of a row, whose other codes stay.
template <std::uint32_t kBits>
constexpr void put_code(std::byte* row, std::size_t c, std::uint8_t code) {
  if constexpr (kBits == 8) {
    row[c] = std::byte{code};
    return;
  }
  constexpr unsigned kMask = (1U << kBits) - 1;
  const std::size_t bit = c * kBits;
  const auto put = [&](std::byte& byte, unsigned mask, unsigned bits) {
    byte = static_cast<std::byte>((std::to_integer<unsigned>(byte) & ~mask) | bits);
  };
  put(row[bit / 8], kMask << bit % 8, unsigned{code} << bit % 8);
  if (8 % kBits != 0 && bit % 8 + kBits > 8)
    put(row[bit / 8 + 1], kMask >> (8 - bit % 8), unsigned{code} >> (8 - bit % 8));
}

/// code x scale. The explicit NaN keeps the result independent of which NaN this processor's
/// multiplication invents or passes on.
inline float scaled(float code, float scale) {
  const float product = code * scale;
  if (!std::isnan(product)) return product;
  return std::bit_cast<float>(0x7FC00000U | (std::bit_cast<std::uint32_t>(code) & 0x80000000U));
}

/// Decodes columns [c, c + n) of row `r` of a run.
void decode_values(const CodedMatrix& m, std::size_t r, std::size_t c, std::size_t n, float* out);

/// Adds the NaN codes among `n` E4M3 codes, the first of which is element `position` of the run.
inline void count_nan_codes(const std::byte* codes, std::size_t n, std::size_t position,
                            DecodeFaults& faults) {
  const auto is_nan = [](std::byte code) {
    return (std::to_integer<std::uint8_t>(code) & 0x7FU) == formats::kE4m3Nan;
  };
  const auto n_found = static_cast<std::uint64_t>(std::count_if(codes, codes + n, is_nan));
  if (n_found == 0) return;
  if (faults.nan_codes == 0)
    faults.first_nan =
        position + static_cast<std::size_t>(std::find_if(codes, codes + n, is_nan) - codes);
  faults.nan_codes += n_found;
}

}  // namespace ingot::quantize
