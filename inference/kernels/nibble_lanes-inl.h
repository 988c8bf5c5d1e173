// E2M1 and INT4 codes to sixteen lanes of FP32 weights.

#if defined(INGOT_INFERENCE_KERNELS_NIBBLE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_NIBBLE_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_NIBBLE_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_NIBBLE_LANES_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/matmul_task.h"
#include "quantize/kernels/codes.h"

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

/// INT4 codes of sixteen columns to weights, which are looked up among the sixteen of their group.
struct Int4Codes {
  using Group = Lanes;
  HWY_INLINE Int4Codes() {
    alignas(64) static constexpr std::array<float, 16> kValues = {0, 1, 2,  3,  4,  5,  6,  7,
                                                                  8, 9, 10, 11, 12, 13, 14, 15};
    values = _mm512_load_ps(kValues.data());
  }
  template <bool kRound>
  HWY_INLINE Group group(float zero, float scale) const {
    const Lanes codes = {{hn::Sub(Floats{values}, hn::Set(kFloats, zero))}};
    return maybe_rounded<kRound>(scaled_lanes(codes, hn::Set(kFloats, scale)));
  }
  template <bool kRound>
  HWY_INLINE Lanes sixteen(const Group& group, const std::byte* codes) const {
    // The permutation ignores all but the lowest four bits of an index.
    return {{Floats{_mm512_permutexvar_ps(spread(codes), group.part[0].raw)}}};
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

/// INT4 codes of sixteen columns to weights.
struct Int4Codes {
  static constexpr hn::Full128<std::uint8_t> kBytes{};
  struct Group {
    Group() : Group(hn::Zero(kFloats), hn::Zero(kFloats)) {}
    HWY_INLINE Group(Floats a_zero, Floats a_scale) : zero(a_zero), scale(a_scale) {}
    Floats zero, scale;
  };
  template <bool kRound>
  HWY_INLINE Group group(float zero, float scale) const {
    return {hn::Set(kFloats, zero), hn::Set(kFloats, scale)};
  }
  template <bool kRound>
  HWY_INLINE Lanes sixteen(const Group& group, const std::byte* pairs_of_codes) const {
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
      out.part[p] = hn::Sub(hn::ConvertTo(kFloats, wide), group.zero);
    }
    return maybe_rounded<kRound>(scaled_lanes(out, group.scale));
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

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
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

/// A row of INT4 codes. Scale and zero point are looked up once per 2^kGroupShift columns, which
/// share them: groups are a power of two, or the whole row.
template <bool kRound, unsigned kGroupShift>
struct Int4Decoder {
  static constexpr std::size_t kVectors = 2 * kLineBytes / kDotLanes;
  static constexpr bool kGrouped = false;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
    Int4Codes codes;
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
  HWY_INLINE Int4Codes::Group group_of(const Shared& shared, std::size_t k) const {
    const std::size_t place = (first_col + k) >> shift;
    const float zero = zeros == nullptr ? quantize::kInt4Zero : zeros[place];
    const float scale = kRound ? ingot::inference::one_nan(scales[place]) : scales[place];
    return shared.codes.template group<kRound>(zero, scale);
  }

  Int4Codes::Group group;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  std::size_t first_col = 0;
  unsigned shift = 0;
};

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
