// Stored codes to sixteen lanes of FP32 weights, in registers: what all decoders share, plain
// numbers, INT8 and E4M3.
//
// A decoder reads one row. `begin` takes the scale of a column of the grid, where kGrouped says
// that it has to be told, and says whether it can work with that; `load` fetches kVectors x 16
// codes, of which `lanes` makes FP32 one vector of sixteen after the other; `sixteen` does both for
// a single one. With kRound the weights are rounded to BF16.

#if defined(INGOT_INFERENCE_KERNELS_CODE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_CODE_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_CODE_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_CODE_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "formats/container/float8.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/weight_matrix.h"

#undef INGOT_BYTE_PERMUTE_128
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INGOT_BYTE_PERMUTE_128 1
#else
#define INGOT_BYTE_PERMUTE_128 0
#endif
#undef INGOT_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define INGOT_F16C 1
#else
#define INGOT_F16C 0
#endif

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
namespace {

constexpr hn::Rebind<std::uint8_t, decltype(kFloats)> kByteCodes;
constexpr hn::Rebind<std::int8_t, decltype(kFloats)> kSignedCodes;
constexpr hn::Rebind<std::uint16_t, decltype(kFloats)> kHalfWords;

/// Codes are fetched ahead and decoded by cache lines.
constexpr std::size_t kLineBytes = 64;

/// Asks for a line of the codes that come after those at work, into the second-level cache. Rows
/// that are read side by side are short streams, over before a processor's own prefetcher knows
/// them, and the first-level cache has room for fewer lines on their way than memory keeps busy.
/// Asked for in the order in which they lie in memory, lines of the next rows are one long stream.
HWY_INLINE void fetch_ahead(const std::byte* line) {
#if HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG
  __builtin_prefetch(line, /*read*/ 0, /*second level*/ 2);
#else
  (void)line;
#endif
}

template <bool kRound>
HWY_INLINE Lanes maybe_rounded(const Lanes& lanes) {
  if constexpr (kRound) {
    return rounded_to_bf16(lanes);
  } else {
    return lanes;
  }
}

/// For schemes whose codes are numbers already: no scales, any NaN.
template <class Derived, std::size_t kCodeBytes>
struct PlainDecoder {
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes / kCodeBytes;
  static constexpr bool kGrouped = false;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
  };
  const std::byte* codes = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = w.codes + row * w.row_bytes;
  }
  HWY_INLINE bool begin(std::size_t /*group*/) { return true; }
  HWY_INLINE const std::byte* line(std::size_t k) const { return codes + k * kCodeBytes; }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& /*shared*/, std::size_t k, std::size_t j) const {
    return static_cast<const Derived*>(this)->value(k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& /*shared*/, std::size_t k) const {
    return static_cast<const Derived*>(this)->value(k);
  }
};

struct Bf16Decoder : PlainDecoder<Bf16Decoder, 2> {
  HWY_INLINE Lanes value(std::size_t k) const {
    const auto* words = reinterpret_cast<const std::uint16_t*>(codes) + k;
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const Words wide = hn::PromoteTo(kWords, hn::LoadU(kHalfWords, words + p * kVectorLanes));
      out.part[p] = hn::BitCast(kFloats, hn::ShiftLeft<16>(wide));
    }
    return out;
  }
};

/// Rounding that leaves every NaN one.
template <bool kRound>
HWY_INLINE Floats plain_rounded(Floats value) {
  if constexpr (kRound) {
    return hn::IfThenElse(hn::IsNaN(value), value, rounded_to_bf16(value));
  } else {
    return value;
  }
}

template <bool kRound>
struct F16Decoder : PlainDecoder<F16Decoder<kRound>, 2> {
  HWY_INLINE Lanes value(std::size_t k) const {
    const auto* words = reinterpret_cast<const std::uint16_t*>(this->codes) + k;
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto half = hn::LoadU(kHalfWords, words + p * kVectorLanes);
      out.part[p] = plain_rounded<kRound>(from_half(half));
    }
    return out;
  }

 private:
  static HWY_INLINE Floats from_half(hn::Vec<decltype(kHalfWords)> half) {
#if INGOT_F16C
    const hn::Rebind<hwy::float16_t, decltype(kFloats)> halves;
    return hn::PromoteTo(kFloats, hn::BitCast(halves, half));
#else
    // As formats::float_from_f16.
    const Words bits = hn::PromoteTo(kWords, half);
    const Words magnitude = hn::And(bits, hn::Set(kWords, 0x7FFF));
    const Words sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(kWords, 0x8000)));
    const Floats count = hn::ConvertTo(kFloats, hn::BitCast(kIntegers, magnitude));
    const Floats tiny = hn::Mul(count, hn::Set(kFloats, 0x1p-24F));
    const Words moved = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(kWords, 112U << 23));
    const Floats normal = hn::BitCast(kFloats, moved);
    const Floats special = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kWords, 112U << 23)));
    const Floats finite = hn::IfThenElse(hn::Lt(normal, hn::Set(kFloats, 0x1p-14F)), tiny, normal);
    const Floats all = hn::IfThenElse(hn::Ge(normal, hn::Set(kFloats, 0x1p16F)), special, finite);
    return hn::Or(all, hn::BitCast(kFloats, sign));
#endif
  }
};

template <bool kRound>
struct F32Decoder : PlainDecoder<F32Decoder<kRound>, 4> {
  HWY_INLINE Lanes value(std::size_t k) const {
    Lanes out = load_lanes(reinterpret_cast<const float*>(this->codes) + k);
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) out.part[p] = plain_rounded<kRound>(out.part[p]);
    return out;
  }
};

/// The scales of a row.
template <bool kRound>
struct RowScales {
  const float* values = nullptr;
  const std::uint8_t* codes = nullptr;
  const float* table = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    const std::size_t first = (w.first_row + row) / w.block_rows * w.scale_cols;
    table = w.scale_values;
    if (w.scales != nullptr) {
      values = w.scales + first;
    } else {
      codes = w.scale_codes + first;
    }
  }
  /// The scale of column `group` of the grid. Rounding relies on a NaN of few bits.
  HWY_INLINE float at(std::size_t group) const {
    const float scale = values != nullptr ? values[group] : table[codes[group]];
    return kRound ? ingot::inference::one_nan(scale) : scale;
  }
};

template <bool kRound>
struct Int8Decoder {
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes;
  static constexpr bool kGrouped = true;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
  };
  const std::int8_t* codes = nullptr;
  RowScales<kRound> scales;
  Floats factor;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = reinterpret_cast<const std::int8_t*>(w.codes + row * w.row_bytes);
    scales.open(w, row);
  }
  HWY_INLINE bool begin(std::size_t group) {
    factor = hn::Set(kFloats, scales.at(group));
    return true;
  }
  HWY_INLINE const std::int8_t* line(std::size_t k) const { return codes + k; }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& /*shared*/, std::size_t k) const {
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto bytes = hn::LoadU(kSignedCodes, codes + k + p * kVectorLanes);
      out.part[p] = hn::ConvertTo(kFloats, hn::PromoteTo(kIntegers, bytes));
    }
    return maybe_rounded<kRound>(scaled_lanes(out, factor));
  }
};

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
