// Stored codes to sixteen lanes of FP32 weights, in registers.
//
// A decoder reads one row. `begin` takes the scale of a column of the grid, where kGrouped says
// that it has to be told, and says whether it can work with that; `load` fetches kVectors x 16
// codes, of which `lanes` makes FP32 one vector of sixteen after the other; `sixteen` does both for
// a single one. With kRound the weights are rounded to BF16.
//
// E4M3. With byte permutes over 128 entries (AVX-512 VBMI) the two bytes of a code's BF16 word,
// which holds every E4M3 value and NaN, are looked up for 64 codes at once, and a third permute
// puts them where an FP32 has them: 7 operations for 64 codes. With F16C a code shifted by 7 is the
// F16 of 2^-8 times its value, and the 2^8 goes into the scale. Otherwise by integer shifts.
//
// E2M1. Of a scale code there are sixteen possible weights, so on AVX-512 the whole arithmetic -
// scale, rounding, NaN - is a table of 256 x 16 and a look-up by permutation, for which one shift
// by bytes (VBMI) spreads the codes of sixteen weights. The other targets look up bytes.

#if defined(INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "formats/float8.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/matmul_task.h"
#include "inference/kernels/weight_value.h"

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

/// Of schemes whose codes are numbers already: no scales, any NaN.
template <class Derived, std::size_t kCodeBytes>
struct PlainDecoder {
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes / kCodeBytes;
  static constexpr std::size_t kRowsTogether = 4;
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
  /// Of column `group` of the grid. Rounding relies on a NaN of few bits.
  HWY_INLINE float at(std::size_t group) const {
    const float scale = values != nullptr ? values[group] : table[codes[group]];
    return kRound ? ingot::inference::one_nan(scale) : scale;
  }
};

template <bool kRound>
struct Int8Decoder {
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes;
  static constexpr std::size_t kRowsTogether = 4;
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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

constexpr bool kUsesE2m1Table = true;

/// The sixteen weights of one scale code.
template <bool kRound>
HWY_INLINE void store_e2m1_values(float scale, float* out) {
  const Lanes codes = load_lanes(kE2m1Values.data());
  store_lanes(maybe_rounded<kRound>(scaled_lanes(codes, hn::Set(kFloats, scale))), out);
}

template <bool kRound, unsigned kGroupShift>
struct E2m1Decoder {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr std::size_t kRowsTogether = 4;
  static constexpr bool kGrouped = false;
  struct Shared {
    explicit HWY_INLINE Shared(const float* e2m1_table) : table(e2m1_table) {
#if INGOT_BYTE_PERMUTE_128
      alignas(64) static constexpr std::array<std::uint8_t, 64> kBits = [] {
        std::array<std::uint8_t, 64> bits{};
        for (std::size_t i = 0; i < 16; ++i) bits[4 * i] = static_cast<std::uint8_t>(4 * i);
        return bits;
      }();
      bits = _mm512_load_si512(kBits.data());
#else
      bits = _mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56);
#endif
    }
    const float* table;
    __m512i bits;
  };
  const std::byte* codes = nullptr;
  const std::uint8_t* groups = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = w.codes + row * w.row_bytes;
    groups = w.scale_codes + (w.first_row + row) / w.block_rows * w.scale_cols +
             w.first_col / w.block_cols;
  }
  HWY_INLINE bool begin(std::size_t /*group*/) {
    return true;
  }
  HWY_INLINE const std::byte* line(std::size_t k) const {
    return codes + k / 2;
  }
  /// A line of codes and its scale codes, the first one lowest.
  struct Loaded {
    const std::byte* codes;
    std::uint64_t scales;
  };
  HWY_INLINE Loaded load(const Shared& /*shared*/, std::size_t k) const {
    std::conditional_t<kGroupShift == 4, std::uint64_t, std::uint32_t> scales;
    std::memcpy(&scales, groups + (k >> kGroupShift), sizeof scales);
    return {codes + k / 2, scales};
  }
  HWY_INLINE Lanes lanes(const Shared& shared, const Loaded& loaded, std::size_t j) const {
    const std::size_t place = kGroupShift == 4 ? 8 * j : 8 * (j / 2);
    return weights(shared, loaded.codes + 8 * j, loaded.scales >> place & 0xFFU);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return weights(shared, codes + k / 2, groups[k >> kGroupShift]);
  }

 private:
  static HWY_INLINE Lanes weights(const Shared& shared, const std::byte* pairs_of_codes,
                                  std::size_t scale_code) {
    long long pairs;
    std::memcpy(&pairs, pairs_of_codes, sizeof pairs);
    const __m512i all = _mm512_set1_epi64(pairs);
#if INGOT_BYTE_PERMUTE_128
    const __m512i code = _mm512_multishift_epi64_epi8(shared.bits, all);
#else
    // Two codes in the lowest byte of a pair of words, of which the second wants the upper one.
    const __m512i byte = _mm512_shuffle_epi32(_mm512_srlv_epi64(all, shared.bits), _MM_PERM_CCAA);
    const __m512i code = _mm512_mask_srli_epi32(byte, 0xAAAA, byte, 4);
#endif
    const float* values = shared.table + scale_code * 16;
    // The permutation ignores all but the lowest four bits of an index.
    return {{Floats{_mm512_permutexvar_ps(code, _mm512_loadu_ps(values))}}};
  }
};

#else

constexpr bool kUsesE2m1Table = false;

/// Upper and lower byte of the upper halves of the FP32s of the sixteen codes.
struct E2m1Bytes {
  alignas(16) std::array<std::uint8_t, 16> high, low;
};
constexpr E2m1Bytes kE2m1Bytes = [] {
  E2m1Bytes bytes{};
  for (std::size_t code = 0; code < 16; ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(kE2m1Values[code]);
    bytes.high[code] = static_cast<std::uint8_t>(bits >> 24);
    bytes.low[code] = static_cast<std::uint8_t>(bits >> 16);
  }
  return bytes;
}();

template <bool kRound, unsigned kGroupShift>
struct E2m1Decoder {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr std::size_t kRowsTogether = 4;
  static constexpr bool kGrouped = false;
  static constexpr hn::Full128<std::uint8_t> kBytes{};
  static constexpr hn::Full128<std::uint16_t> kHalves{};
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/)
        : high(hn::Load(kBytes, kE2m1Bytes.high.data())),
          low(hn::Load(kBytes, kE2m1Bytes.low.data())) {}
    hn::Vec<hn::Full128<std::uint8_t> > high, low;
  };
  const std::byte* codes = nullptr;
  const std::uint8_t* groups = nullptr;
  const float* scale_values = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = w.codes + row * w.row_bytes;
    groups = w.scale_codes + (w.first_row + row) / w.block_rows * w.scale_cols +
             w.first_col / w.block_cols;
    scale_values = w.scale_values;
  }
  HWY_INLINE bool begin(std::size_t /*group*/) { return true; }
  HWY_INLINE const std::byte* line(std::size_t k) const { return codes + k / 2; }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    std::uint64_t pairs;
    std::memcpy(&pairs, codes + k / 2, sizeof pairs);
    const auto both = hn::BitCast(kBytes, hn::Set(hn::Full128<std::uint64_t>(), pairs));
    const auto code =
        hn::InterleaveLower(kBytes, hn::And(both, hn::Set(kBytes, 15)), hn::ShiftRight<4>(both));
    const auto high = hn::TableLookupBytes(shared.high, code);
    const auto low = hn::TableLookupBytes(shared.low, code);
    alignas(32) std::array<std::uint16_t, 16> words;
    hn::Store(hn::BitCast(kHalves, hn::InterleaveLower(kBytes, low, high)), kHalves, words.data());
    hn::Store(hn::BitCast(kHalves, hn::InterleaveUpper(kBytes, low, high)), kHalves,
              words.data() + 8);
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const Words wide = hn::PromoteTo(kWords, hn::LoadU(kHalfWords, &words[p * kVectorLanes]));
      out.part[p] = hn::BitCast(kFloats, hn::ShiftLeft<16>(wide));
    }
    const float scale = ingot::inference::one_nan(scale_values[groups[k >> kGroupShift]]);
    return maybe_rounded<kRound>(scaled_lanes(out, hn::Set(kFloats, scale)));
  }
};

#endif

/// Of matrices whose groups no other decoder can walk: never works, so that the twin does.
struct NoDecoder : PlainDecoder<NoDecoder, 4> {
  HWY_INLINE bool begin(std::size_t /*group*/) { return false; }
  HWY_INLINE Lanes value(std::size_t /*k*/) const { return zero_lanes(); }
};

/// Up to sixteen weights from the twin, zeros after the `n`-th.
HWY_INLINE Lanes twin_lanes(const WeightMatrix& w, std::size_t row, std::size_t col, std::size_t n,
                            WeightRounding rounding) {
  alignas(64) std::array<float, kDotLanes> values{};
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = rounded_weight(weight_value(w, row, col + i), rounding);
  }
  return load_lanes(values.data());
}

/// Columns that share a scale as far as a decoder has to be told.
struct Segment {
  std::size_t begin = 0, end = 0, group = 0;
};

/// Calls visit(segment) for the segments of columns [begin, end) of a row.
template <class Decoder, class Visit>
HWY_INLINE void for_each_segment(const WeightMatrix& w, std::size_t begin, std::size_t end,
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

/// Calls body(Decoder()) with the decoder for a matrix.
template <class Body>
HWY_INLINE void with_decoder(const WeightMatrix& w, WeightRounding rounding, const Body& body) {
  using formats::SchemeId;
  const bool round = rounding == WeightRounding::kBf16;
  const auto choose = [&](auto exact, auto rounded)
                          HWY_ATTR { round ? body(rounded) : body(exact); };
  if (!has_regular_groups(w)) return body(NoDecoder());
  switch (w.scheme) {
    case SchemeId::kBf16:
      return body(Bf16Decoder());
    case SchemeId::kF16:
      return choose(F16Decoder<false>(), F16Decoder<true>());
    case SchemeId::kF32:
      return choose(F32Decoder<false>(), F32Decoder<true>());
    case SchemeId::kFp8Block:
    case SchemeId::kFp8Channel:
    case SchemeId::kFp8Tensor:
    case SchemeId::kMxfp8:
      return choose(E4m3Decoder<false>(), E4m3Decoder<true>());
    case SchemeId::kInt8Channel:
    case SchemeId::kInt8Block:
      return choose(Int8Decoder<false>(), Int8Decoder<true>());
    case SchemeId::kNvfp4:
    case SchemeId::kMxfp4:
      return w.block_cols == 16 ? choose(E2m1Decoder<false, 4>(), E2m1Decoder<true, 4>())
                                : choose(E2m1Decoder<false, 5>(), E2m1Decoder<true, 5>());
    case SchemeId::kRaw:
      break;
  }
  INGOT_CHECK(false);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
