// E4M3 codes to sixteen lanes of FP32 weights. With byte permutes over 128 entries (AVX-512 VBMI)
// the two bytes of a code's BF16 word, which holds every E4M3 value and NaN, are looked up for 64
// codes at once, and a third permute puts them where an FP32 has them: 7 operations for 64 codes.
// With F16C a code shifted by 7 is the F16 of 2^-8 times its value, and the 2^8 goes into the
// scale. Otherwise by integer shifts.

#if defined(INGOT_INFERENCE_KERNELS_E4M3_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_E4M3_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_E4M3_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_E4M3_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "formats/container/float8.h"
#include "inference/kernels/code_lanes-inl.h"

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
namespace {

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
  /// What scales are multiplied by.
  static constexpr float kUnit = 1;
};

#else

/// Values of 16 codes at a time, in units of 1 / kUnit, not yet scaled.
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
    const auto value = hn::And(moved, hn::Set(halves, static_cast<std::int16_t>(0xBFFFU)));
    const auto magnitude = hn::And(moved, hn::Set(halves, 0x3FFF));
    // The NaN code is the only one with this magnitude.
    const auto is_nan = hn::Eq(magnitude, hn::Set(halves, 0x3F80));
    const auto all = hn::BitCast(
        half_floats, hn::Or(value, hn::IfThenElseZero(is_nan, hn::Set(halves, 0x7E00))));
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
      const Words code = hn::PromoteTo(kWords, hn::LoadU(kByteCodes, codes + p * kVectorLanes));
      const Words moved = hn::ShiftLeft<20>(hn::And(code, hn::Set(kWords, 0x7F)));
      const Floats normal = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kWords, 120U << 23)));
      const Floats first_normal = hn::Set(kFloats, 0x1p-6F);
      const Floats next = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kWords, 121U << 23)));
      const Floats finite =
          hn::IfThenElse(hn::Lt(normal, first_normal), hn::Sub(next, first_normal), normal);
      const Floats nan = hn::BitCast(kFloats, hn::Set(kWords, 0x7FC00000U));
      const Floats magnitude =
          hn::IfThenElse(hn::Eq(normal, hn::Set(kFloats, 480.0F)), nan, finite);
      const Words sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(kWords, 0x80)));
      out.part[p] = hn::Or(magnitude, hn::BitCast(kFloats, sign));
    }
    return out;
  }
#endif
};

#endif

template <bool kRound>
struct E4m3Decoder {
  static constexpr std::size_t kVectors = E4m3Values::kVectors;
  static constexpr std::size_t kRowsTogether = 4;
  static constexpr bool kGrouped = true;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    E4m3Values::Shared values;
  };
  const std::uint8_t* codes = nullptr;
  RowScales<kRound> scales;
  Floats factor;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = reinterpret_cast<const std::uint8_t*>(w.codes + row * w.row_bytes);
    scales.open(w, row);
  }
  HWY_INLINE bool begin(std::size_t group) {
    const float scale = scales.at(group);
    factor = hn::Set(kFloats, scale * E4m3Values::kUnit);
    if constexpr (E4m3Values::kUnit == 1) return true;
    return std::isinf(scale) || !std::isinf(scale * E4m3Values::kUnit);
  }
  HWY_INLINE const std::uint8_t* line(std::size_t k) const { return codes + k; }
  HWY_INLINE E4m3Values::Loaded load(const Shared& shared, std::size_t k) const {
    return E4m3Values::load(shared.values, codes + k);
  }
  HWY_INLINE Lanes lanes(const Shared& shared, const E4m3Values::Loaded& loaded,
                         std::size_t j) const {
    return maybe_rounded<kRound>(scaled_lanes(E4m3Values::lanes(shared.values, loaded, j), factor));
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return maybe_rounded<kRound>(
        scaled_lanes(E4m3Values::sixteen(shared.values, codes + k), factor));
  }
};

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
