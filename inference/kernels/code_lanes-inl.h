// Stored codes to sixteen lanes of FP32 weights, in registers: what all decoders share, plain
// numbers and INT8.
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

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

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
  /// The scale of column `group` of the grid. Rounding relies on a NaN of few bits.
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

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
