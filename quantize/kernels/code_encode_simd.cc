// FP32 to codes.
//
// Rounding to a mantissa of b bits, to nearest even, is one addition: of a power of two so large
// that the sum has b bits left for the value. With that power taken from the value's own exponent,
// but not below that of the smallest normal code, the same addition rounds normal and subnormal
// codes; and the mantissa of the sum counts the steps of the code within its exponent, so that the
// code follows by integer addition of the exponent. For E4M3 the power is 2^20 times that of the
// value, for E2M1 2^22 times.
//
// The division is a true one. Multiplying by the reciprocal would be faster by a tenth and differ
// in codes at ties.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/base/error.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/code_encode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

using scalar::encode_codes;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
constexpr hn::Rebind<std::uint8_t, decltype(kFloats)> kByteCodes;
using Floats = hn::Vec<decltype(kFloats)>;
using Words = hn::Vec<decltype(kWords)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

/// Code of a magnitude that is at most the largest code, of codes with `kMantissaBits` and a
/// smallest normal value of 2^(kFirstExponent - 127).
template <int kMantissaBits, std::uint32_t kFirstExponent>
HWY_INLINE Words rounded_code(Floats magnitude) {
  constexpr std::uint32_t kShift = 23 - kMantissaBits;
  const Words exponent_mask = hn::Set(kWords, 0x7F800000U);
  const Words own = hn::And(hn::BitCast(kWords, magnitude), exponent_mask);
  const Floats power = hn::Max(hn::BitCast(kFloats, own),
                               hn::BitCast(kFloats, hn::Set(kWords, kFirstExponent << 23)));
  const Words unit = hn::Add(hn::BitCast(kWords, power), hn::Set(kWords, kShift << 23));
  const Words sum = hn::BitCast(kWords, hn::Add(magnitude, hn::BitCast(kFloats, unit)));
  const Words exponents = hn::Sub(hn::ShiftRight<23 - kMantissaBits>(unit),
                                  hn::Set(kWords, (kFirstExponent + kShift) << kMantissaBits));
  return hn::Add(hn::Sub(sum, unit), exponents);
}

HWY_INLINE Floats magnitude_below(Floats quotient, float largest) {
  return hn::Min(hn::Abs(quotient), hn::Set(kFloats, largest));
}

/// The codes of a vector of values under a scale, and a zero point.
template <class Code>
struct Encoder;

template <>
struct Encoder<E4m3> {
  static HWY_INLINE Words code(Floats value, Floats scale, Floats /*zero*/) {
    const Words magnitude = rounded_code<3, 121>(magnitude_below(hn::Div(value, scale), 448.0F));
    const Words sign =
        hn::And(hn::ShiftRight<24>(hn::BitCast(kWords, value)), hn::Set(kWords, 128));
    return hn::Or(magnitude, sign);
  }
};

template <>
struct Encoder<E2m1> {
  static HWY_INLINE Words code(Floats value, Floats scale, Floats /*zero*/) {
    const Words magnitude = rounded_code<1, 127>(magnitude_below(hn::Div(value, scale), 6.0F));
    const Floats sign = hn::IfThenElseZero(hn::Lt(value, hn::Zero(kFloats)),
                                           hn::BitCast(kFloats, hn::Set(kWords, 8)));
    return hn::Or(magnitude, hn::BitCast(kWords, sign));
  }
};

template <>
struct Encoder<Int8> {
  static HWY_INLINE Words code(Floats value, Floats scale, Floats /*zero*/) {
    const Floats within = hn::Max(hn::Min(hn::Div(value, scale), hn::Set(kFloats, 127.0F)),
                                  hn::Set(kFloats, -127.0F));
    // 1.5 x 2^23 has a unit of 1 in its last place, and room on both sides.
    const Floats sum = hn::Add(within, hn::Set(kFloats, 0x1.8p23F));
    return hn::And(hn::BitCast(kWords, sum), hn::Set(kWords, 0xFF));
  }
};

template <>
struct Encoder<Int4> {
  static HWY_INLINE Words code(Floats value, Floats scale, Floats zero) {
    const Floats most = hn::Sub(hn::Set(kFloats, Int4::value(15, 0)), zero);
    const Floats within = hn::Max(hn::Min(hn::Div(value, scale), most), hn::Neg(zero));
    // Ties are those of the value, not of the code: the zero point may be odd.
    const Floats sum = hn::Add(hn::Add(within, hn::Set(kFloats, 0x1.8p23F)), zero);
    return hn::And(hn::BitCast(kWords, sum), hn::Set(kWords, 0xF));
  }
};

/// The scale of a group, and its zero point.
struct Grid {
  float scale, zero;
};

HWY_INLINE Grid grid_of(const ScaledGroups& in, std::size_t group) {
  return {in.scales[group], static_cast<float>(in.zero(group))};
}

#if HWY_TARGET == HWY_AVX2
constexpr std::size_t kFour = 4 * kLanes;

/// One byte per code of kFour values, of which either half has its scale.
template <typename Code>
HWY_INLINE void encode_four(const float* values, const Grid& first, const Grid& second,
                            std::uint8_t* out) {
  const Floats one = hn::Set(kFloats, first.scale), other = hn::Set(kFloats, second.scale);
  const Floats zero = hn::Set(kFloats, first.zero), other_zero = hn::Set(kFloats, second.zero);
  const Words a = Encoder<Code>::code(hn::LoadU(kFloats, values), one, zero);
  const Words b = Encoder<Code>::code(hn::LoadU(kFloats, values + kLanes), one, zero);
  const Words c = Encoder<Code>::code(hn::LoadU(kFloats, values + 2 * kLanes), other, other_zero);
  const Words d = Encoder<Code>::code(hn::LoadU(kFloats, values + 3 * kLanes), other, other_zero);
  // Joined once for all four instead of twice for each; within halves of vectors, hence the order.
  const __m256i joined =
      _mm256_packus_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  hn::StoreU(hn::Vec256<std::uint8_t>{_mm256_permutevar8x32_epi32(joined, order)},
             hn::Full256<std::uint8_t>(), out);
}
#endif

/// One byte per code of `n` values under one scale.
template <typename Code>
HWY_INLINE void encode_piece(const float* values, std::size_t n, const Grid& grid,
                             std::uint8_t* out) {
  const Floats divisor = hn::Set(kFloats, grid.scale), zero = hn::Set(kFloats, grid.zero);
  const auto store = [divisor, zero](const float* from, std::uint8_t* to) HWY_ATTR {
    hn::StoreU(hn::U8FromU32(Encoder<Code>::code(hn::LoadU(kFloats, from), divisor, zero)),
               kByteCodes, to);
  };
  if (n < kLanes) {
    std::array<float, kLanes> some{};
    std::array<std::uint8_t, kLanes> codes;
    std::memcpy(some.data(), values, n * sizeof(float));
    store(some.data(), codes.data());
    std::memcpy(out, codes.data(), n);
    return;
  }
  std::size_t i = 0;
#if HWY_TARGET == HWY_AVX2
  for (; i + kFour <= n; i += kFour) encode_four<Code>(values + i, grid, grid, out + i);
#endif
  for (; i + kLanes <= n; i += kLanes) store(values + i, out + i);
  // The last vector may overlap its predecessor: the same values give the same codes.
  if (i < n) store(values + n - kLanes, out + n - kLanes);
}

/// Codes of columns [begin, end) of a row, one byte each.
template <typename Code>
HWY_INLINE void encode_columns(const ScaledGroups& in, const float* row, std::size_t first_group,
                               std::size_t begin, std::size_t end, std::uint8_t* out) {
  const auto block_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, in.values.cols));
  std::size_t group = first_group + begin / block_cols;
#if HWY_TARGET == HWY_AVX2
  // Small groups, two at a time.
  for (; block_cols == kFour / 2 && begin + kFour <= end; begin += kFour, group += 2) {
    encode_four<Code>(row + begin, grid_of(in, group), grid_of(in, group + 1), out);
    out += kFour;
  }
#endif
  for (std::size_t c = begin; c < end; ++group) {
    const std::size_t next = std::min(end, (group + 1 - first_group) * block_cols);
    encode_piece<Code>(row + c, next - c, grid_of(in, group), out + (c - begin));
    c = next;
  }
}

std::size_t first_group_of_row(const ScaledGroups& in, std::size_t row) {
  const auto across = static_cast<std::size_t>(ceil_div(in.values.cols, in.block_cols));
  return static_cast<std::size_t>(row / in.block_rows) * across;
}

/// Joins `n` codes, an even number, two to a byte.
HWY_INLINE void pack_pairs(const std::uint8_t* codes, std::size_t n, std::uint8_t* out) {
  constexpr hn::ScalableTag<std::int16_t> kPairs;
  constexpr hn::RebindToUnsigned<decltype(kPairs)> kUnsignedPairs;
  constexpr hn::Rebind<std::uint8_t, decltype(kPairs)> kJoined;
  constexpr std::size_t kCodes = 2 * hn::MaxLanes(kPairs);
  std::size_t i = 0;
  for (; i + kCodes <= n; i += kCodes) {
    const auto pairs =
        hn::BitCast(kUnsignedPairs, hn::LoadU(hn::ScalableTag<std::uint8_t>(), codes + i));
    const auto joined =
        hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(kUnsignedPairs, 255));
    hn::StoreU(hn::DemoteTo(kJoined, hn::BitCast(kPairs, joined)), kJoined, out + i / 2);
  }
  for (; i < n; i += 2) out[i / 2] = static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4);
}

template <typename Code>
HWY_INLINE void encode_rows(const ScaledGroups& in, std::byte* codes, std::size_t stride) {
  constexpr std::size_t kColumnsAtOnce = 2048;
  alignas(64) std::array<std::uint8_t, Code::kBits == 8 ? 1 : kColumnsAtOnce> stage;
  for (std::size_t r = 0; r < in.values.rows; ++r) {
    const float* row = in.values.row(r);
    const std::size_t group = first_group_of_row(in, r);
    auto* out = reinterpret_cast<std::uint8_t*>(codes + r * stride);
    if constexpr (Code::kBits == 8) {
      encode_columns<Code>(in, row, group, 0, in.values.cols, out);
    } else {
      for (std::size_t c = 0; c < in.values.cols; c += kColumnsAtOnce) {
        const std::size_t end = std::min(c + kColumnsAtOnce, in.values.cols);
        encode_columns<Code>(in, row, group, c, end, stage.data());
        pack_pairs(stage.data(), end - c, out + c / 2);
      }
    }
  }
}

}  // namespace

void encode_codes(formats::CodeKind kind, const ScaledGroups& in, std::byte* codes,
                  std::size_t stride) {
  with_code(kind, [&](auto code) HWY_ATTR { encode_rows<decltype(code)>(in, codes, stride); });
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(encode_codes);

/// Checks that codes fill bytes and scales cover the run; false where it is empty.
bool has_groups(formats::CodeKind kind, const ScaledGroups& in) {
  INGOT_CHECK(in.values.cols * code_facts(kind).bits % 8 == 0);
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  INGOT_CHECK(in.block_rows > 0 && in.block_cols > 0);
  INGOT_CHECK(in.scales.size() / ceil_div(in.values.cols, in.block_cols) >=
              ceil_div(in.values.rows, in.block_rows));
  INGOT_CHECK(in.zeros.empty() || in.zeros.size() == in.scales.size());
  return true;
}

}  // namespace

void scalar::encode_codes(formats::CodeKind kind, const ScaledGroups& in, std::byte* codes,
                          std::size_t stride) {
  if (!has_groups(kind, in)) return;
  with_code(kind, [&](auto code) {
    for_each_group_piece(in.values, in.block_rows, in.block_cols, in.scales.size(),
                         [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                           for (std::size_t c = begin; c < end; ++c) {
                             const float value = in.values.row(r)[c];
                             const float quotient = value / in.scales[group];
                             std::uint8_t nearest = 0;
                             if constexpr (code.kHasZero) {
                               nearest = code.nearest(value, quotient, in.zero(group));
                             } else {
                               nearest = code.nearest(value, quotient);
                             }
                             put_code<code.kBits>(codes + r * stride, c, nearest);
                           }
                         });
  });
}

void encode_codes(formats::CodeKind kind, const ScaledGroups& in, std::byte* codes,
                  std::size_t stride) {
  if (has_groups(kind, in)) HWY_DYNAMIC_DISPATCH(encode_codes)(kind, in, codes, stride);
}

}  // namespace ingot::quantize
#endif
