// Codes to FP32.
//
// E4M3: the bits of a code, moved to the exponent and mantissa of an F16 or F32, are its value once
// the bias is corrected. Where processors do not read F16, subnormal codes are given the next
// exponent, whose first mantissa step they count, and lose that exponent's power of two again,
// which makes every other code larger. Reading them as subnormal F32s would be shorter and, on
// processors that trap them, many times slower. NaN codes come out as 480 and are put right in a
// second look at the row, which only rows with a 480 get.
//
// E2M1 and INT4: the upper half of the F32 of each of the sixteen codes is two bytes, and so two
// look-ups of sixteen codes each; the lower half is zero.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/scheme.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/code_decode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

DecodeFaults decode_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  return scalar::decode(in, out);
}

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
constexpr hn::Rebind<std::int8_t, decltype(kFloats)> kSignedCodes;
constexpr hn::RebindToSigned<decltype(kFloats)> kSignedWords;
using Floats = hn::Vec<decltype(kFloats)>;
using Words = hn::Vec<decltype(kWords)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

/// Values of kLanes codes over kFactor, and checks of them after a row.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
// Reads E4M3 codes as F16, whose bias is eight more; the processor reads its subnormal numbers,
// too.
struct E4m3Values {
  static constexpr hn::Rebind<std::int16_t, decltype(kFloats)> kHalves{};
  static constexpr float kFactor = 0x1p8F;
  static constexpr std::int16_t kNanAsHalf = 0x7F << 7;

  HWY_INLINE E4m3Values() : largest(hn::Zero(kHalves)) {}
  HWY_INLINE Floats operator()(const std::uint8_t* codes) {
    const auto bytes = hn::LoadU(kSignedCodes, reinterpret_cast<const std::int8_t*>(codes));
    const auto moved = hn::ShiftLeft<7>(hn::PromoteTo(kHalves, bytes));  // sign in bits 14 and 15
    largest = hn::Max(largest, hn::And(moved, hn::Set(kHalves, kNanAsHalf)));
    const auto half = hn::AndNot(hn::Set(kHalves, 0x4000), moved);
    return hn::PromoteTo(kFloats,
                         hn::BitCast(hn::Rebind<hwy::float16_t, decltype(kFloats)>(), half));
  }
  static float one(std::uint8_t code, float scale) { return scaled(E4m3::value(code), scale); }
  [[nodiscard]] HWY_INLINE bool saw_nan() const {
    return !hn::AllFalse(kHalves, hn::Eq(largest, hn::Set(kHalves, kNanAsHalf)));
  }

  hn::Vec<decltype(kHalves)> largest;
};
#else
struct E4m3Values {
  static constexpr float kFactor = 1, kNanAsNumber = 480.0F;

  HWY_INLINE E4m3Values() : largest(hn::Zero(kFloats)) {}
  HWY_INLINE Floats operator()(const std::uint8_t* codes) {
    const auto bytes = hn::LoadU(kSignedCodes, reinterpret_cast<const std::int8_t*>(codes));
    const Words code = hn::BitCast(kWords, hn::PromoteTo(kSignedWords, bytes));  // sign in bit 31
    const Words moved = hn::And(hn::ShiftLeft<20>(code), hn::Set(kWords, 0x7FU << 20));
    const Floats normal = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kWords, 120U << 23)));
    // One exponent up, less its power of two: below `normal` for subnormal codes only.
    const Floats tiny = hn::MulSub(normal, hn::Set(kFloats, 2.0F), hn::Set(kFloats, 0x1p-6F));
    largest = hn::Max(largest, normal);
    const Words sign = hn::And(code, hn::Set(kWords, 0x80000000U));
    return hn::Or(hn::Min(normal, tiny), hn::BitCast(kFloats, sign));
  }
  static float one(std::uint8_t code, float scale) { return scaled(E4m3::value(code), scale); }
  [[nodiscard]] HWY_INLINE bool saw_nan() const {
    return !hn::AllFalse(kFloats, hn::Ge(largest, hn::Set(kFloats, kNanAsNumber)));
  }

  Floats largest;
};
#endif

struct Int8Values {
  static constexpr float kFactor = 1;

  HWY_INLINE Floats operator()(const std::uint8_t* codes) {
    const auto bytes = hn::LoadU(kSignedCodes, reinterpret_cast<const std::int8_t*>(codes));
    return hn::ConvertTo(kFloats, hn::PromoteTo(kSignedWords, bytes));
  }
  static float one(std::uint8_t code, float scale) { return scaled(Int8::value(code), scale); }
  [[nodiscard]] HWY_INLINE bool saw_nan() const { return false; }
};

/// `n` one-byte codes under one scale.
template <typename Values>
HWY_INLINE void decode_piece(const std::uint8_t* codes, std::size_t n, float scale, float* out,
                             Values& values) {
  if (!std::isfinite(scale * Values::kFactor)) {
    for (std::size_t i = 0; i < n; ++i) out[i] = Values::one(codes[i], scale);
    return;
  }
  const Floats factor = hn::Set(kFloats, scale * Values::kFactor);
  if (n < kLanes) {
    std::array<std::uint8_t, kLanes> some{};
    std::array<float, kLanes> products;
    std::memcpy(some.data(), codes, n);
    hn::StoreU(hn::Mul(values(some.data()), factor), kFloats, products.data());
    std::memcpy(out, products.data(), n * sizeof(float));
    return;
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(values(codes + i), factor), kFloats, out + i);
  }
  // The last vector may overlap its predecessor: the same codes give the same values.
  if (i < n) {
    hn::StoreU(hn::Mul(values(codes + n - kLanes), factor), kFloats, out + n - kLanes);
  }
}

/// Puts the NaN codes of a row right, and counts them. Under a scale that is not finite they are
/// right already.
void settle_nan_codes(const CodedMatrix& in, std::size_t row, float* out, DecodeFaults& faults) {
  for (std::size_t c = 0; c < in.cols; ++c) {
    const float value = E4m3::value(code_at<8>(in.row(row), c));
    if (std::isnan(value)) out[c] = scaled(value, 1.0F);
  }
  count_nan_codes(in.row(row), in.cols, row * in.cols, faults);
}

template <typename Values>
HWY_INLINE DecodeFaults decode_bytes(const CodedMatrix& in, formats::MatrixView<float> out) {
  DecodeFaults faults;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const float* scales = in.scales.data() + in.first_group(r) + in.block_of_col(0);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(in.row(r));
    float* row = out.row(r);
    Values values;
    bool finite = true;
    for (std::size_t c = 0, end = in.group_end(0); c < in.cols;) {
      finite = finite && std::isfinite(*scales * Values::kFactor);
      decode_piece(codes + c, end - c, *scales++, row + c, values);
      c = end;
      end = in.whole_group_end(end);
    }
    if (std::is_same_v<Values, E4m3Values> && (values.saw_nan() || !finite)) {
      settle_nan_codes(in, r, row, faults);
    }
  }
  return faults;
}

/// Upper and lower byte of the upper halves of the F32s of the sixteen codes.
struct NibbleTables {
  alignas(16) std::array<std::uint8_t, 16> high, low;
};
template <typename ValueOf>
constexpr NibbleTables tables_of(const ValueOf& value_of) {
  NibbleTables tables{};
  for (std::uint8_t code = 0; code < 16; ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(value_of(code));
    tables.high[code] = static_cast<std::uint8_t>(bits >> 24);
    tables.low[code] = static_cast<std::uint8_t>(bits >> 16);
  }
  return tables;
}

/// The value of a code of four bits, before the scale.
struct E2m1Nibbles {
  static constexpr NibbleTables kTables =
      tables_of([](std::uint8_t code) { return E2m1::value(code); });
  static constexpr bool kHasZero = false;
  static float one(std::uint8_t code, std::uint8_t /*zero*/, float scale) {
    return scaled(E2m1::value(code), scale);
  }
};
struct Int4Nibbles {
  static constexpr NibbleTables kTables =
      tables_of([](std::uint8_t code) { return static_cast<float>(code); });
  static constexpr bool kHasZero = true;
  static float one(std::uint8_t code, std::uint8_t zero, float scale) {
    return scaled(Int4::value(code, zero), scale);
  }
};

/// The arithmetic on the codes of a group.
template <bool kHasZero>
struct NibbleGroup {
  HWY_INLINE NibbleGroup(float scale, std::uint8_t zero_code)
      : factor(hn::Set(kFloats, scale)), zero(hn::Set(kFloats, static_cast<float>(zero_code))) {}
  [[nodiscard]] HWY_INLINE Floats operator()(Floats code) const {
    if constexpr (kHasZero) code = hn::Sub(code, zero);
    return hn::Mul(code, factor);
  }
  Floats factor, zero;
};

constexpr hn::Full128<std::uint8_t> kBytes128;
constexpr hn::Full128<std::uint16_t> kHalves128;
using Bytes128 = hn::Vec<decltype(kBytes128)>;
using Halves128 = hn::Vec<decltype(kHalves128)>;

template <typename Group>
HWY_INLINE void store_products(Words upper_halves, const Group& group, float* out) {
  hn::StoreU(group(hn::BitCast(kFloats, hn::ShiftLeft<16>(upper_halves))), kFloats, out);
}

/// Widens two vectors of eight upper halves to sixteen products.
template <typename Group>
HWY_INLINE void store_sixteen(Halves128 first, Halves128 second, const Group& scale, float* out) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const auto all = hn::Combine(hn::Full256<std::uint16_t>(), second, first);
  store_products(hn::PromoteTo(kWords, all), scale, out);
#elif HWY_TARGET == HWY_AVX2
  store_products(hn::PromoteTo(kWords, first), scale, out);
  store_products(hn::PromoteTo(kWords, second), scale, out + 8);
#else
  store_products(hn::PromoteTo(kWords, hn::LowerHalf(first)), scale, out);
  store_products(hn::PromoteTo(kWords, hn::UpperHalf(hn::Half<decltype(kHalves128)>(), first)),
                 scale, out + 4);
  store_products(hn::PromoteTo(kWords, hn::LowerHalf(second)), scale, out + 8);
  store_products(hn::PromoteTo(kWords, hn::UpperHalf(hn::Half<decltype(kHalves128)>(), second)),
                 scale, out + 12);
#endif
}

template <typename Group>
HWY_INLINE void decode_sixteen(const std::byte* codes, Bytes128 high, Bytes128 low,
                               const Group& scale, float* out) {
  std::uint64_t pairs;
  std::memcpy(&pairs, codes, sizeof pairs);
  const Bytes128 both = hn::BitCast(kBytes128, hn::Set(hn::Full128<std::uint64_t>(), pairs));
  const Bytes128 code = hn::InterleaveLower(kBytes128, hn::And(both, hn::Set(kBytes128, 15)),
                                            hn::ShiftRight<4>(both));
  const Bytes128 upper = hn::TableLookupBytes(high, code);
  const Bytes128 lower = hn::TableLookupBytes(low, code);
  store_sixteen(hn::BitCast(kHalves128, hn::InterleaveLower(kBytes128, lower, upper)),
                hn::BitCast(kHalves128, hn::InterleaveUpper(kBytes128, lower, upper)), scale, out);
}

/// Groups are runs of columns.
template <typename Nibbles>
HWY_INLINE void decode_nibbles(const CodedMatrix& in, formats::MatrixView<float> out) {
  const Bytes128 high = hn::Load(kBytes128, Nibbles::kTables.high.data());
  const Bytes128 low = hn::Load(kBytes128, Nibbles::kTables.low.data());
  for (std::size_t r = 0; r < in.rows; ++r) {
    std::size_t group_number = in.first_group(r) + in.block_of_col(0);
    const std::byte* codes = in.row(r);
    float* row = out.row(r);
    for (std::size_t c = 0, end = in.group_end(0); c < in.cols; ++group_number) {
      const float scale = in.scales[group_number];
      const std::uint8_t zero = in.zero(group_number);
      if (c % 2 == 0 && std::isfinite(scale)) {
        const NibbleGroup<Nibbles::kHasZero> group(scale, zero);
        for (; c + 16 <= end; c += 16) decode_sixteen(codes + c / 2, high, low, group, row + c);
      }
      for (; c < end; ++c) row[c] = Nibbles::one(code_at<4>(codes, c), zero, scale);
      end = in.whole_group_end(end);
    }
  }
}

}  // namespace

DecodeFaults decode_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  switch (formats::scheme_facts(in.scheme).code) {
    case formats::CodeKind::kE4m3:
      return decode_bytes<E4m3Values>(in, out);
    case formats::CodeKind::kInt8:
      return decode_bytes<Int8Values>(in, out);
    case formats::CodeKind::kE2m1:
      decode_nibbles<E2m1Nibbles>(in, out);
      return {};
    default:
      decode_nibbles<Int4Nibbles>(in, out);
      return {};
  }
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(decode_codes);

void decode_words(const CodedMatrix& in, formats::MatrixView<float> out) {
  const WordCast cast = in.scheme == formats::SchemeId::kBf16  ? WordCast::kBf16ToF32
                        : in.scheme == formats::SchemeId::kF16 ? WordCast::kF16ToF32
                                                               : WordCast::kF32ToF32;
  const std::size_t n_bytes = in.cols * formats::scheme_facts(in.scheme).code_bits / 8;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::byte* row = in.row(r);
    // The next tile's part of this row, which is in a page of its own, as all rows are.
    for (std::size_t at = n_bytes; in.row_bytes > n_bytes && at < 2 * n_bytes; at += 64)
      __builtin_prefetch(row + at);
    cast_words(cast, row, in.cols, reinterpret_cast<std::byte*>(out.row(r)));
  }
}

/// The columns of one group are not adjacent, so vectors do not help: the sixteen values of each
/// group are made once a row, and looked up.
void decode_ordered(const CodedMatrix& in, formats::MatrixView<float> out) {
  constexpr std::size_t kCodes = 16;
  const auto groups = in.group_order.subspan(static_cast<std::size_t>(in.first_col), in.cols);
  INGOT_CHECK(std::ranges::all_of(groups, [&](auto group) { return group < in.scale_cols; }));
  std::vector<float> values(kCodes * in.scale_cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::size_t first = in.first_group(r);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t group = first + i / kCodes;
      values[i] = scaled(Int4::value(static_cast<std::uint8_t>(i % kCodes), in.zero(group)),
                         in.scale(group));
    }
    const std::byte* codes = in.row(r);
    float* row = out.row(r);
    for (std::size_t c = 0; c < in.cols; c += 2) {
      const auto pair = std::to_integer<std::size_t>(codes[c / 2]);
      row[c] = values[kCodes * groups[c] + pair % kCodes];
      row[c + 1] = values[kCodes * groups[c + 1] + pair / kCodes];
    }
  }
}

/// Checks the shapes; false where the run is empty.
bool has_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  check_codes(in);
  return in.rows != 0 && in.cols != 0;
}

}  // namespace

DecodeFaults scalar::decode(const CodedMatrix& in, formats::MatrixView<float> out) {
  DecodeFaults faults;
  if (!has_codes(in, out)) return faults;
  const bool has_nan = formats::scheme_facts(in.scheme).code == formats::CodeKind::kE4m3;
  for (std::size_t r = 0; r < in.rows; ++r) {
    for (std::size_t c = 0; c < in.cols; ++c) out.row(r)[c] = value_at(in, r, c);
    if (has_nan) count_nan_codes(in.row(r), in.cols, r * in.cols, faults);
  }
  return faults;
}

DecodeFaults decode(const CodedMatrix& in, formats::MatrixView<float> out) {
  if (!has_codes(in, out)) return {};
  if (formats::is_quantized(in.scheme) && in.group_order.empty())
    return HWY_DYNAMIC_DISPATCH(decode_codes)(in, out);
  formats::is_quantized(in.scheme) ? decode_ordered(in, out) : decode_words(in, out);
  return {};
}

}  // namespace ingot::quantize
#endif
