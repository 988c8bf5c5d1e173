// E4M3 codes, and the walk over the rows of a stored matrix: which decoder reads its scheme, where
// its scales change, and the twin for the rest that fills no vector.

#if defined(INGOT_QUANTIZE_KERNELS_CODED_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_QUANTIZE_KERNELS_CODED_LANES_INL_H_
#undef INGOT_QUANTIZE_KERNELS_CODED_LANES_INL_H_
#else
#define INGOT_QUANTIZE_KERNELS_CODED_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/decoding.h"
#include "quantize/kernels/lanes-inl.h"
#include "quantize/kernels/nibble_lanes-inl.h"

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {

// E4M3 codes to sixteen lanes of FP32 weights. With byte permutes over 128 entries (AVX-512 VBMI)
// the two bytes of a code's BF16 word, which holds every E4M3 value and NaN, are looked up for 64
// codes at once, and a third permute puts them where an FP32 has them: 7 operations for 64 codes.
// With F16C a code shifted by 7 is the F16 of 2^-8 times its value, and the 2^8 goes into the
// scale. Otherwise by integer shifts.

#if INGOT_BYTE_PERMUTE_128

/// Bytes of the BF16 words of E4M3 magnitudes, and where they go: of 128 bytes, the low ones of 64
/// codes before the high ones, those of code 16 j + i to the upper half of word i.
struct E4m3Tables {
  alignas(64) std::array<std::uint8_t, 128> low, high;
  alignas(64) std::array<std::array<std::uint8_t, 64>, 4> place;
};
constexpr E4m3Tables kE4m3Tables = [] {
  E4m3Tables tables{};
  for (std::size_t code = 0; code < 128; ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(formats::kE4m3Values[code]);
    tables.low[code] = static_cast<std::uint8_t>(bits >> 16);
    tables.high[code] = static_cast<std::uint8_t>(bits >> 24);
  }
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t i = 0; i < 16; ++i) {
      tables.place[j][4 * i + 2] = static_cast<std::uint8_t>(16 * j + i);
      tables.place[j][4 * i + 3] = static_cast<std::uint8_t>(64 + 16 * j + i);
    }
  }
  return tables;
}();

/// Values of 64 codes at a time, not yet scaled.
template <bool kNan>
struct E4m3Values {
  static constexpr std::size_t kVectors = 4;
  struct Shared {
    HWY_INLINE Shared() {
      for (std::size_t i = 0; i < 2; ++i) {
        low[i] = _mm512_load_si512(kE4m3Tables.low.data() + 64 * i);
        high[i] = _mm512_load_si512(kE4m3Tables.high.data() + 64 * i);
      }
      for (std::size_t j = 0; j < 4; ++j) place[j] = _mm512_load_si512(kE4m3Tables.place[j].data());
    }
    __m512i low[2], high[2], place[4];
  };
  struct Loaded {
    __m512i low, high;
  };
  static HWY_INLINE Loaded look_up(const Shared& shared, __m512i codes) {
    // The permutes ignore bit 7 of the index.
    const __m512i low = _mm512_permutex2var_epi8(shared.low[0], codes, shared.low[1]);
    const __m512i high = _mm512_permutex2var_epi8(shared.high[0], codes, shared.high[1]);
    // high | (codes & 0x80)
    return {low, _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xF8)};
  }
  static HWY_INLINE Loaded load(const Shared& shared, const std::uint8_t* codes) {
    return look_up(shared, _mm512_loadu_si512(codes));
  }
  static HWY_INLINE Lanes lanes(const Shared& shared, const Loaded& loaded, std::size_t j) {
    constexpr __mmask64 kUpperHalves = 0xCCCCCCCCCCCCCCCCU;
    const __m512i words =
        _mm512_maskz_permutex2var_epi8(kUpperHalves, loaded.low, shared.place[j], loaded.high);
    return {{Floats{_mm512_castsi512_ps(words)}}};
  }
  static HWY_INLINE Lanes sixteen(const Shared& shared, const std::uint8_t* codes) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return lanes(shared, look_up(shared, _mm512_castsi128_si512(some)), 0);
  }
  /// The factor of scales.
  static constexpr float kUnit = 1;
};

#else

/// Values of 16 codes at a time, in units of 1 / kUnit, not yet scaled. Without kNan, NaN codes are
/// 480.
template <bool kNan>
struct E4m3Values {
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes;
  struct Shared {};
  using Loaded = const std::uint8_t*;
  static HWY_INLINE Loaded load(const Shared& /*shared*/, const std::uint8_t* codes) {
    return codes;
  }
  static HWY_INLINE Lanes lanes(const Shared& shared, const Loaded& codes, std::size_t j) {
    return sixteen(shared, codes + j * kDotLanes);
  }
#if INGOT_F16C
  static constexpr float kUnit = 256;
  static HWY_INLINE Lanes sixteen(const Shared& /*shared*/, const std::uint8_t* codes) {
    const hn::FixedTag<std::int8_t, 16> bytes;
    const hn::FixedTag<std::int16_t, 16> halves;
    const hn::FixedTag<hwy::float16_t, 16> half_floats;
    const auto moved = hn::ShiftLeft<7>(
        hn::PromoteTo(halves, hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(codes))));
    auto value = hn::And(moved, hn::Set(halves, static_cast<std::int16_t>(0xBFFFU)));
    if constexpr (kNan) {
      // The NaN code is the only one with this magnitude.
      const auto magnitude = hn::And(moved, hn::Set(halves, 0x3FFF));
      const auto is_nan = hn::Eq(magnitude, hn::Set(halves, 0x3F80));
      value = hn::Or(value, hn::IfThenElseZero(is_nan, hn::Set(halves, 0x7E00)));
    }
    const auto all = hn::BitCast(half_floats, value);
#if HWY_MAX_BYTES >= 64
    return {{hn::PromoteTo(kFloats, all)}};
#else
    const hn::Half<decltype(half_floats)> half;
    return {{hn::PromoteTo(kFloats, hn::LowerHalf(half, all)),
             hn::PromoteTo(kFloats, hn::UpperHalf(half, all))}};
#endif
  }
#else
  static constexpr float kUnit = 1;
  static HWY_INLINE Lanes sixteen(const Shared& /*shared*/, const std::uint8_t* codes) {
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto* bytes = reinterpret_cast<const std::int8_t*>(codes) + p * kVectorLanes;
      // The sign is in bits 7 to 31.
      const Words code =
          hn::BitCast(kWords, hn::PromoteTo(kIntegers, hn::LoadU(kSignedCodes, bytes)));
      const Words moved = hn::And(hn::ShiftLeft<20>(code), hn::Set(kWords, 0x7FU << 20));
      const Floats normal = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kWords, 120U << 23)));
      // One exponent up, less its power of two: below `normal` for subnormal codes only.
      const Floats tiny = hn::Sub(hn::Add(normal, normal), hn::Set(kFloats, 0x1p-6F));
      Floats magnitude = hn::Min(normal, tiny);
      if constexpr (kNan) {
        const Floats nan = hn::BitCast(kFloats, hn::Set(kWords, 0x7FC00000U));
        magnitude = hn::IfThenElse(hn::Eq(normal, hn::Set(kFloats, 480.0F)), nan, magnitude);
      }
      const Words sign = hn::And(code, hn::Set(kWords, 0x80000000U));
      out.part[p] = hn::Or(magnitude, hn::BitCast(kFloats, sign));
    }
    return out;
  }
#endif
};

#endif

template <bool kRound, bool kNan>
struct ByteDecoder<E4m3, kRound, kNan> : ScaledRow<kRound, std::uint8_t> {
  using Values = E4m3Values<kNan>;
  static constexpr float kUnit = Values::kUnit;
  static constexpr std::size_t kVectors = Values::kVectors;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    typename Values::Shared values;
  };

  HWY_INLINE bool begin(std::size_t group) {
    const float scale = this->scales.at(group);
    this->factor = hn::Set(kFloats, scale * Values::kUnit);
    if constexpr (Values::kUnit == 1) return true;
    return std::isinf(scale) || !std::isinf(scale * Values::kUnit);
  }
  HWY_INLINE typename Values::Loaded load(const Shared& shared, std::size_t k) const {
    return Values::load(shared.values, this->codes + k);
  }
  HWY_INLINE Lanes lanes(const Shared& shared, const typename Values::Loaded& loaded,
                         std::size_t j) const {
    return maybe_rounded<kRound>(
        scaled_lanes(Values::lanes(shared.values, loaded, j), this->factor));
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return maybe_rounded<kRound>(
        scaled_lanes(Values::sixteen(shared.values, this->codes + k), this->factor));
  }
};

/// Decoder for matrices whose groups no other decoder can walk: it never works, so that the twin
/// does.
struct NoDecoder : PlainDecoder<NoDecoder, 4> {
  HWY_INLINE bool begin(std::size_t /*group*/) { return false; }
  HWY_INLINE Lanes value(std::size_t /*k*/) const { return zero_lanes(); }
};

/// Returns up to sixteen weights from the twin, zeros after the `n`-th.
HWY_INLINE Lanes twin_lanes(const CodedMatrix& w, std::size_t row, std::size_t col, std::size_t n,
                            WeightRounding rounding) {
  alignas(64) std::array<float, kDotLanes> values{};
  decode_values(w, row, col, n, values.data());
  for (float& value : values) value = rounded_weight(value, rounding);
  return load_lanes(values.data());
}

/// Columns that share a scale as far as a decoder has to be told.
struct Segment {
  std::size_t begin = 0, end = 0, group = 0;
};

/// Calls visit(segment) for the segments of columns [begin, end) of a row.
template <class Decoder, class Visit>
HWY_INLINE void for_each_segment(const CodedMatrix& w, std::size_t begin, std::size_t end,
                                 const Visit& visit) {
  if constexpr (!Decoder::kGrouped) {
    visit(Segment{begin, end, 0});
  } else {
    Segment segment{begin, begin, w.block_cols == 0 ? 0 : (w.first_col + begin) / w.block_cols};
    while (segment.begin < end) {
      const std::size_t group_end = (segment.group + 1) * w.block_cols - w.first_col;
      segment.end = w.block_cols == 0 || group_end > end ? end : group_end;
      visit(segment);
      segment.begin = segment.end;
      ++segment.group;
    }
  }
}

/// Calls body(Decoder()) with one of two decoders, by what is wanted of the weights.
template <class Exact, class Rounded, class Body>
HWY_INLINE void with_either(WeightRounding rounding, const Body& body) {
  rounding == WeightRounding::kBf16 ? body(Rounded()) : body(Exact());
}

/// Calls body(Decoder()) with the decoder for a matrix of the family.
template <class Body>
HWY_INLINE void with_plain_decoder(const CodedMatrix& w, WeightRounding rounding,
                                   const Body& body) {
  using formats::SchemeId;
  if (!has_regular_groups(w)) return body(NoDecoder());
  if (w.scheme == SchemeId::kBf16) return body(Bf16Decoder());
  if (w.scheme == SchemeId::kF16)
    return with_either<F16Decoder<false>, F16Decoder<true>>(rounding, body);
  INGOT_CHECK(w.scheme == SchemeId::kF32);
  with_either<F32Decoder<false>, F32Decoder<true>>(rounding, body);
}

template <class Body>
HWY_INLINE void with_byte_decoder(const CodedMatrix& w, WeightRounding rounding, const Body& body) {
  with_code(formats::scheme_facts(w.scheme).code, [&](auto code) HWY_ATTR {
    using Code = decltype(code);
    if constexpr (Code::kBits != 4)
      with_either<ByteDecoder<Code, false>, ByteDecoder<Code, true>>(rounding, body);
  });
}

/// Calls body(std::integral_constant<n>()): 2^n columns from a multiple of them on share a scale.
/// For groups of a power of two or of a row.
template <class Body>
HWY_INLINE void with_group_shift(const CodedMatrix& w, const Body& body) {
  const auto shares = [&](std::size_t cols) {
    return is_one_group(w) || (w.block_cols % cols == 0 && w.first_col % cols == 0);
  };
  if (shares(128)) return body(std::integral_constant<unsigned, 7>());
  if (shares(32)) return body(std::integral_constant<unsigned, 5>());
  body(std::integral_constant<unsigned, 4>());
}

template <class Body>
HWY_INLINE void with_nibble_decoder(const CodedMatrix& w, WeightRounding rounding,
                                    const Body& body) {
  if (formats::scheme_facts(w.scheme).code == formats::CodeKind::kE2m1) {
    if (w.block_cols == 16)
      return with_either<E2m1Decoder<false, 4>, E2m1Decoder<true, 4>>(rounding, body);
    return with_either<E2m1Decoder<false, 5>, E2m1Decoder<true, 5>>(rounding, body);
  }
  with_group_shift(w, [&](auto shift) HWY_ATTR {
    with_either<Int4Decoder<false, shift()>, Int4Decoder<true, shift()>>(rounding, body);
  });
}

/// Calls body(Decoder()) with the decoder for a matrix of any family.
template <class Body>
HWY_INLINE void with_decoder(const CodedMatrix& w, WeightRounding rounding, const Body& body) {
  switch (decoder_family(w)) {
    case DecoderFamily::kPlain:
      return with_plain_decoder(w, rounding, body);
    case DecoderFamily::kBytes:
      return with_byte_decoder(w, rounding, body);
    case DecoderFamily::kNibbles:
      return with_nibble_decoder(w, rounding, body);
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
