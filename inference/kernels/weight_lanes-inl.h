// E4M3, E2M1 and INT4 codes, and the walk over the rows of a stored matrix: which decoder reads its
// scheme, where its scales change, and the twin for what fills no vector.

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

#include <hwy/highway.h>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/matmul_task.h"
#include "inference/kernels/weight_value.h"

#undef INGOT_BYTE_PERMUTE_128
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INGOT_BYTE_PERMUTE_128 1
#else
#define INGOT_BYTE_PERMUTE_128 0
#endif

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
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
struct E4m3Decoder : ScaledRow<kRound, std::uint8_t> {
  static constexpr std::size_t kVectors = E4m3Values::kVectors;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    E4m3Values::Shared values;
  };

  HWY_INLINE bool begin(std::size_t group) {
    const float scale = this->scales.at(group);
    this->factor = hn::Set(kFloats, scale * E4m3Values::kUnit);
    if constexpr (E4m3Values::kUnit == 1) return true;
    return std::isinf(scale) || !std::isinf(scale * E4m3Values::kUnit);
  }
  HWY_INLINE E4m3Values::Loaded load(const Shared& shared, std::size_t k) const {
    return E4m3Values::load(shared.values, this->codes + k);
  }
  HWY_INLINE Lanes lanes(const Shared& shared, const E4m3Values::Loaded& loaded,
                         std::size_t j) const {
    return maybe_rounded<kRound>(
        scaled_lanes(E4m3Values::lanes(shared.values, loaded, j), this->factor));
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return maybe_rounded<kRound>(
        scaled_lanes(E4m3Values::sixteen(shared.values, this->codes + k), this->factor));
  }
};

// E2M1 codes to sixteen lanes of FP32 weights. A scale code has sixteen possible weights, so
// on AVX-512 the whole arithmetic - scale, rounding, NaN - is a table of 256 x 16 and a look-up
// by permutation, for which one shift by bytes (VBMI) spreads the codes of sixteen weights. The
// other targets look up bytes.

/// A row of E2M1 codes and where its scale codes begin.
struct E2m1Row {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr bool kGrouped = false;

  const std::byte* codes = nullptr;
  const std::uint8_t* groups = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = w.codes + row * w.row_bytes;
    groups = w.scale_codes + (w.first_row + row) / w.block_rows * w.scale_cols +
             w.first_col / w.block_cols;
  }
  HWY_INLINE bool begin(std::size_t /*group*/) { return true; }
  HWY_INLINE const std::byte* line(std::size_t k) const { return codes + k / 2; }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

/// Spreads sixteen codes of four bits over words, of which all but the lowest four bits are noise.
struct NibbleSpread {
  HWY_INLINE NibbleSpread() {
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
  HWY_INLINE __m512i operator()(const std::byte* pairs_of_codes) const {
    long long pairs;
    std::memcpy(&pairs, pairs_of_codes, sizeof pairs);
    const __m512i all = _mm512_set1_epi64(pairs);
#if INGOT_BYTE_PERMUTE_128
    return _mm512_multishift_epi64_epi8(bits, all);
#else
    // Two codes in the lowest byte of a pair of words, of which the second wants the upper one.
    const __m512i byte = _mm512_shuffle_epi32(_mm512_srlv_epi64(all, bits), _MM_PERM_CCAA);
    return _mm512_mask_srli_epi32(byte, 0xAAAA, byte, 4);
#endif
  }
  __m512i bits;
};

/// INT4 codes of sixteen columns as they are stored, less 8.
struct Int4Codes {
  HWY_INLINE Int4Codes() {
    alignas(64) static constexpr std::array<float, 16> kValues = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                                  0,  1,  2,  3,  4,  5,  6,  7};
    values = _mm512_load_ps(kValues.data());
  }
  HWY_INLINE Lanes sixteen(const std::byte* codes) const {
    // The permutation ignores all but the lowest four bits of an index.
    return {{Floats{_mm512_permutexvar_ps(spread(codes), values)}}};
  }
  NibbleSpread spread;
  __m512 values;
};

/// The sixteen weights of one scale code.
template <bool kRound>
HWY_INLINE void store_e2m1_values(float scale, float* out) {
  const Lanes codes = load_lanes(kE2m1Values.data());
  store_lanes(maybe_rounded<kRound>(scaled_lanes(codes, hn::Set(kFloats, scale))), out);
}

template <bool kRound, unsigned kGroupShift>
struct E2m1Decoder : E2m1Row {
  struct Shared {
    explicit HWY_INLINE Shared(const float* e2m1_table) : table(e2m1_table) {}
    const float* table;
    NibbleSpread spread;
  };
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
    const __m512i code = shared.spread(pairs_of_codes);
    const float* values = shared.table + scale_code * 16;
    // The permutation ignores all but the lowest four bits of an index.
    return {{Floats{_mm512_permutexvar_ps(code, _mm512_loadu_ps(values))}}};
  }
};

#else

/// INT4 codes of sixteen columns as they are stored, less 8.
struct Int4Codes {
  static constexpr hn::Full128<std::uint8_t> kBytes{};
  HWY_INLINE Lanes sixteen(const std::byte* pairs_of_codes) const {
    std::uint64_t pairs;
    std::memcpy(&pairs, pairs_of_codes, sizeof pairs);
    const auto both = hn::BitCast(kBytes, hn::Set(hn::Full128<std::uint64_t>(), pairs));
    alignas(16) std::array<std::uint8_t, 16> codes;
    hn::Store(
        hn::InterleaveLower(kBytes, hn::And(both, hn::Set(kBytes, 15)), hn::ShiftRight<4>(both)),
        kBytes, codes.data());
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto wide =
          hn::PromoteTo(kIntegers, hn::LoadU(kByteCodes, codes.data() + p * kVectorLanes));
      out.part[p] = hn::ConvertTo(kFloats, hn::Sub(wide, hn::Set(kIntegers, 8)));
    }
    return out;
  }
};

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
struct E2m1Decoder : E2m1Row {
  static constexpr hn::Full128<std::uint8_t> kBytes{};
  static constexpr hn::Full128<std::uint16_t> kHalves{};
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/)
        : high(hn::Load(kBytes, kE2m1Bytes.high.data())),
          low(hn::Load(kBytes, kE2m1Bytes.low.data())) {}
    hn::Vec<hn::Full128<std::uint8_t> > high, low;
  };
  const float* scale_values = nullptr;

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    E2m1Row::open(w, row);
    scale_values = w.scale_values;
  }
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

/// A row of INT4 codes. Scales and zero points are looked up per sixteen columns: groups are a
/// power of two, or the whole row.
template <bool kRound>
struct Int4Decoder {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr bool kGrouped = false;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    Int4Codes codes;
  };

  HWY_INLINE void open(const WeightMatrix& w, std::size_t row) {
    codes = w.codes + row * w.row_bytes;
    const std::size_t first = (w.first_row + row) / w.block_rows * w.scale_cols;
    scales = w.scales + first;
    zeros = w.zeros == nullptr ? nullptr : w.zeros + first;
    first_col = w.first_col;
    const bool is_row = w.first_col + w.cols <= w.block_cols;
    shift = is_row ? 63U : static_cast<unsigned>(std::countr_zero(w.block_cols));
  }
  HWY_INLINE bool begin(std::size_t /*group*/) { return true; }
  HWY_INLINE const std::byte* line(std::size_t k) const { return codes + k / 2; }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    const std::size_t group = (first_col + k) >> shift;
    Lanes out = shared.codes.sixteen(codes + k / 2);
    if (zeros != nullptr) {
      const Floats less = hn::Set(kFloats, static_cast<float>(int{zeros[group]} - 8));
      HWY_UNROLL(4)
      for (std::size_t p = 0; p < kParts; ++p) out.part[p] = hn::Sub(out.part[p], less);
    }
    const float scale = kRound ? ingot::inference::one_nan(scales[group]) : scales[group];
    return maybe_rounded<kRound>(scaled_lanes(out, hn::Set(kFloats, scale)));
  }

  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  std::size_t first_col = 0;
  unsigned shift = 0;
};

/// For matrices whose groups no other decoder can walk: never works, so that the twin does.
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
  using formats::CodeKind;
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
    default:
      break;
  }
  switch (formats::scheme_facts(w.scheme).code) {
    case CodeKind::kE4m3:
      return choose(E4m3Decoder<false>(), E4m3Decoder<true>());
    case CodeKind::kInt8:
      return choose(Int8Decoder<false>(), Int8Decoder<true>());
    case CodeKind::kE2m1:
      return w.block_cols == 16 ? choose(E2m1Decoder<false, 4>(), E2m1Decoder<true, 4>())
                                : choose(E2m1Decoder<false, 5>(), E2m1Decoder<true, 5>());
    case CodeKind::kInt4:
      return choose(Int4Decoder<false>(), Int4Decoder<true>());
    case CodeKind::kPlain:
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
