// E2M1 and INT4 codes to sixteen lanes of FP32 weights.

#if defined(INGOT_QUANTIZE_KERNELS_NIBBLE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_QUANTIZE_KERNELS_NIBBLE_LANES_INL_H_
#undef INGOT_QUANTIZE_KERNELS_NIBBLE_LANES_INL_H_
#else
#define INGOT_QUANTIZE_KERNELS_NIBBLE_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "quantize/kernels/codes.h"
#include "quantize/kernels/decoding.h"
#include "quantize/kernels/lanes-inl.h"

#undef INGOT_BYTE_PERMUTE_128
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INGOT_BYTE_PERMUTE_128 1
#else
#define INGOT_BYTE_PERMUTE_128 0
#endif

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {

/// The values of the sixteen codes of a kind, less no zero point.
template <class Code>
constexpr std::array<float, 16> kNibbleValues = [] {
  std::array<float, 16> values{};
  for (std::uint8_t code = 0; code < 16; ++code) values[code] = Code::value(code, 0);
  return values;
}();

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

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    codes = w.row(row);
    groups = w.scale_codes + w.first_group(row) + w.block_of_col(0);
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

/// Codes of sixteen columns to weights, which are looked up among the sixteen of their group.
template <class Code>
struct Nibbles {
  using Group = Lanes;
  HWY_INLINE Nibbles() : values(load_lanes(kNibbleValues<Code>.data())) {}
  template <bool kRound>
  HWY_INLINE Group group(float zero, float scale) const {
    Lanes codes = values;
    if constexpr (Code::kHasZero) codes.part[0] = hn::Sub(codes.part[0], hn::Set(kFloats, zero));
    return maybe_rounded<kRound>(scaled_lanes(codes, hn::Set(kFloats, scale)));
  }
  template <bool kRound>
  HWY_INLINE Lanes sixteen(const Group& group, const std::byte* codes) const {
    // The permutation ignores all but the lowest four bits of an index.
    return {{Floats{_mm512_permutexvar_ps(spread(codes), group.part[0].raw)}}};
  }
  NibbleSpread spread;
  Lanes values;
};

/// The sixteen weights of one scale code.
template <bool kRound>
HWY_INLINE void store_e2m1_values(float scale, float* out) {
  const Lanes codes = load_lanes(kNibbleValues<E2m1>.data());
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

constexpr hn::Full128<std::uint8_t> kBytes128;
constexpr hn::Full128<std::uint16_t> kHalves128;

/// Upper and lower byte of the upper halves of the FP32s of the sixteen codes, whose lower halves
/// are zero.
struct NibbleBytes {
  alignas(16) std::array<std::uint8_t, 16> high, low;
};
template <class Code>
constexpr NibbleBytes kNibbleBytes = [] {
  NibbleBytes bytes{};
  for (std::size_t code = 0; code < 16; ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(kNibbleValues<Code>[code]);
    bytes.high[code] = static_cast<std::uint8_t>(bits >> 24);
    bytes.low[code] = static_cast<std::uint8_t>(bits >> 16);
  }
  return bytes;
}();

/// Codes of sixteen columns to weights.
template <class Code>
struct Nibbles {
  struct Group {
    Group() : Group(hn::Zero(kFloats), hn::Zero(kFloats)) {}
    HWY_INLINE Group(Floats a_zero, Floats a_scale) : zero(a_zero), scale(a_scale) {}
    Floats zero, scale;
  };
  HWY_INLINE Nibbles()
      : high(hn::Load(kBytes128, kNibbleBytes<Code>.high.data())),
        low(hn::Load(kBytes128, kNibbleBytes<Code>.low.data())) {}
  template <bool kRound>
  HWY_INLINE Group group(float zero, float scale) const {
    return {hn::Set(kFloats, zero), hn::Set(kFloats, scale)};
  }
  template <bool kRound>
  HWY_INLINE Lanes sixteen(const Group& group, const std::byte* pairs_of_codes) const {
    Lanes out = values(pairs_of_codes);
    HWY_UNROLL(4)
    for (std::size_t p = 0; Code::kHasZero && p < kParts; ++p)
      out.part[p] = hn::Sub(out.part[p], group.zero);
    return maybe_rounded<kRound>(scaled_lanes(out, group.scale));
  }
  /// The values of sixteen codes, less no zero point.
  HWY_INLINE Lanes values(const std::byte* pairs_of_codes) const {
    std::uint64_t pairs;
    std::memcpy(&pairs, pairs_of_codes, sizeof pairs);
    const auto both = hn::BitCast(kBytes128, hn::Set(hn::Full128<std::uint64_t>(), pairs));
    const auto code = hn::InterleaveLower(kBytes128, hn::And(both, hn::Set(kBytes128, 15)),
                                          hn::ShiftRight<4>(both));
    Lanes out;
#if HWY_MAX_BYTES >= 32
    // Through memory, from which vectors are widened as they are loaded.
    if constexpr (Code::kHasZero) {
      alignas(16) std::array<std::uint8_t, 16> codes;
      hn::Store(code, kBytes128, codes.data());
      HWY_UNROLL(4)
      for (std::size_t p = 0; p < kParts; ++p) {
        const auto wide =
            hn::PromoteTo(kIntegers, hn::LoadU(kByteCodes, codes.data() + p * kVectorLanes));
        out.part[p] = hn::ConvertTo(kFloats, wide);
      }
      return out;
    }
#endif
    const auto upper = hn::TableLookupBytes(high, code);
    const auto lower = hn::TableLookupBytes(low, code);
    const auto first = hn::BitCast(kHalves128, hn::InterleaveLower(kBytes128, lower, upper));
    const auto second = hn::BitCast(kHalves128, hn::InterleaveUpper(kBytes128, lower, upper));
#if HWY_MAX_BYTES >= 32
    alignas(32) std::array<std::uint16_t, 16> words;
    hn::Store(first, kHalves128, words.data());
    hn::Store(second, kHalves128, words.data() + 8);
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const Words wide = hn::PromoteTo(kWords, hn::LoadU(kHalfWords, &words[p * kVectorLanes]));
      out.part[p] = hn::BitCast(kFloats, hn::ShiftLeft<16>(wide));
    }
#else
    // The halves become the upper ones of their words.
    const auto none = hn::Zero(kHalves128);
    out.part[0] = hn::BitCast(kFloats, hn::InterleaveLower(kHalves128, none, first));
    out.part[1] = hn::BitCast(kFloats, hn::InterleaveUpper(kHalves128, none, first));
    out.part[2] = hn::BitCast(kFloats, hn::InterleaveLower(kHalves128, none, second));
    out.part[3] = hn::BitCast(kFloats, hn::InterleaveUpper(kHalves128, none, second));
#endif
    return out;
  }

 private:
  hn::Vec<decltype(kBytes128)> high, low;
};

template <bool kRound, unsigned kGroupShift>
struct E2m1Decoder : E2m1Row {
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    Nibbles<E2m1> codes;
  };
  const float* scale_values = nullptr;

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    E2m1Row::open(w, row);
    scale_values = w.scale_values;
  }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    const float value = scale_values[groups[k >> kGroupShift]];
    const float scale = kRound ? ingot::quantize::one_nan(value) : value;
    return maybe_rounded<kRound>(
        scaled_lanes(shared.codes.values(codes + k / 2), hn::Set(kFloats, scale)));
  }
};

#endif

/// A row of INT4 codes. Scale and zero point are looked up once per 2^kGroupShift columns, which
/// share them: groups are a power of two, or the whole row.
template <bool kRound, unsigned kGroupShift>
struct Int4Decoder {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr bool kGrouped = false;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    Nibbles<Int4> codes;
  };

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    codes = w.row(row);
    const std::size_t first = w.first_group(row);
    scales = w.scales.data() + first;
    zeros = w.zeros.empty() ? nullptr : w.zeros.data() + first;
    first_col = w.first_col;
    shift = is_one_group(w) ? 63U : static_cast<unsigned>(std::countr_zero(w.block_cols));
  }
  HWY_INLINE bool begin(std::size_t /*group*/) { return true; }
  HWY_INLINE const std::byte* line(std::size_t k) const { return codes + k / 2; }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) {
    constexpr std::size_t kSharing = (std::size_t{1} << kGroupShift) / kDotLanes;
    k += j * kDotLanes;
    if (j % kSharing == 0) group = group_of(shared, k);
    return shared.codes.template sixteen<kRound>(group, codes + k / 2);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return shared.codes.template sixteen<kRound>(group_of(shared, k), codes + k / 2);
  }

 private:
  HWY_INLINE Nibbles<Int4>::Group group_of(const Shared& shared, std::size_t k) const {
    const std::size_t place = (first_col + k) >> shift;
    const float zero = zeros == nullptr ? kInt4Zero : zeros[place];
    const float scale = kRound ? ingot::quantize::one_nan(scales[place]) : scales[place];
    return shared.codes.template group<kRound>(zero, scale);
  }

  Nibbles<Int4>::Group group;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  std::size_t first_col = 0;
  unsigned shift = 0;
};

/// A row of codes of four bits, in groups of any width.
template <class Code>
struct NibbleDecoder : ScaledRow<false, std::byte> {
  static constexpr float kUnit = 1;
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
  };
  HWY_INLINE NibbleDecoder() {}  // as for Lanes  NOLINT(modernize-use-equals-default)

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    ScaledRow<false, std::byte>::open(w, row);
    zeros = w.zeros.empty() ? nullptr : w.zeros.data() + w.first_group(row);
  }
  HWY_INLINE bool begin(std::size_t place) {
    const float zero = zeros == nullptr ? kInt4Zero : zeros[place];
    group = nibbles.template group<false>(zero, this->scales.at(place));
    return true;
  }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& /*shared*/, std::size_t k) const {
    return nibbles.template sixteen<false>(group, codes + k / 2);
  }

 private:
  Nibbles<Code> nibbles;
  typename Nibbles<Code>::Group group;
  const std::uint8_t* zeros = nullptr;
};

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
