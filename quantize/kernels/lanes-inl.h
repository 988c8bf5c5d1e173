// Stored codes to sixteen lanes of FP32 in registers (one vector of 512 bits, or several shorter
// ones): the common part of all decoders, plain numbers, INT8. Included once per target, outside of
// any namespace.
//
// A decoder reads one row. `begin` takes the scale of a column of the grid, where kGrouped says
// that it has to be told, and says whether it can work with that; `load` fetches kVectors x 16
// codes, of which `lanes` makes FP32 one vector of sixteen after the other; `sixteen` does both for
// a single one. With kRound the weights are rounded to BF16.

// Per-target include guard.
#if defined(INGOT_QUANTIZE_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_QUANTIZE_KERNELS_LANES_INL_H_
#undef INGOT_QUANTIZE_KERNELS_LANES_INL_H_
#else
#define INGOT_QUANTIZE_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "quantize/coded_matrix.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/decoding.h"

// Targets whose vectors have no size at compile time run the scalar twins, as does the one without
// vectors.
#undef INGOT_HAS_LANES
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#define INGOT_HAS_LANES 0
#else
#define INGOT_HAS_LANES 1
#endif

#undef INGOT_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define INGOT_F16C 1
#else
#define INGOT_F16C 0
#endif

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kDotLanes> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
constexpr hn::RebindToSigned<decltype(kFloats)> kIntegers;
using Floats = hn::Vec<decltype(kFloats)>;
using Words = hn::Vec<decltype(kWords)>;
constexpr std::size_t kVectorLanes = hn::MaxLanes(kFloats);
/// Vectors that hold the lanes.
constexpr std::size_t kParts = kDotLanes / kVectorLanes;

/// Lane i is element i % kVectorLanes of part i / kVectorLanes. The constructor is written out for
/// ARM, or GCC would compile it for no target in particular, where it cannot inline that of NEON's
/// vectors.
struct Lanes {
#if HWY_ARCH_ARM
  Lanes() {}  // NOLINT(modernize-use-equals-default)
#endif
  Floats part[kParts];
};

HWY_INLINE Lanes zero_lanes() {
  Lanes lanes;
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Zero(kFloats);
  return lanes;
}

HWY_INLINE Lanes load_lanes(const float* from) {
  Lanes lanes;
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) {
    lanes.part[p] = hn::LoadU(kFloats, from + p * kVectorLanes);
  }
  return lanes;
}

HWY_INLINE void store_lanes(const Lanes& lanes, float* to) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) {
    hn::StoreU(lanes.part[p], kFloats, to + p * kVectorLanes);
  }
}

HWY_INLINE Lanes scaled_lanes(Lanes lanes, Floats factor) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Mul(lanes.part[p], factor);
  return lanes;
}

/// Rounds to BF16 and widens again, as formats::bf16_from_float rounds; a NaN must not have all
/// bits set.
HWY_INLINE Floats rounded_to_bf16(Floats value) {
  const Words bits = hn::BitCast(kWords, value);
  const Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kWords, 1));
  const Words sum = hn::Add(hn::Add(bits, hn::Set(kWords, 0x7FFF)), odd);
  return hn::BitCast(kFloats, hn::And(sum, hn::Set(kWords, 0xFFFF0000U)));
}

HWY_INLINE Lanes rounded_to_bf16(Lanes lanes) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) lanes.part[p] = rounded_to_bf16(lanes.part[p]);
  return lanes;
}

constexpr hn::Rebind<std::uint8_t, decltype(kFloats)> kByteCodes;
constexpr hn::Rebind<std::int8_t, decltype(kFloats)> kSignedCodes;
constexpr hn::Rebind<std::uint16_t, decltype(kFloats)> kHalfWords;

/// Codes are fetched ahead and decoded by cache lines.
constexpr std::size_t kLineBytes = 64;

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

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) { codes = w.row(row); }
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

/// Rounding under which a NaN stays a NaN.
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
    // Widens halves as formats::float_from_f16 does.
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

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    const std::size_t first = w.first_group(row);
    table = w.scale_values;
    if (!w.scales.empty()) {
      values = w.scales.data() + first;
    } else {
      codes = w.scale_codes + first;
    }
  }
  /// The scale of column `group` of the grid. Rounding relies on a NaN of few bits.
  HWY_INLINE float at(std::size_t group) const {
    const float scale = values != nullptr ? values[group] : table[codes[group]];
    return kRound ? ingot::quantize::one_nan(scale) : scale;
  }
};

/// A row of codes with scales, `factor` times which are the weights at work.
template <bool kRound, class Code>
struct ScaledRow {
  ScaledRow() {}  // as for Lanes  NOLINT(modernize-use-equals-default)
  static constexpr bool kGrouped = true;
  const Code* codes = nullptr;
  RowScales<kRound> scales;
  Floats factor;

  HWY_INLINE void open(const CodedMatrix& w, std::size_t row) {
    codes = reinterpret_cast<const Code*>(w.row(row));
    scales.open(w, row);
  }
  HWY_INLINE const Code* line(std::size_t k) const { return codes + k; }
};

/// The decoder of codes of a byte. Without `kNan`, codes that are NaN may become other numbers.
template <class Code, bool kRound, bool kNan = true>
struct ByteDecoder;

template <bool kRound, bool kNan>
struct ByteDecoder<Int8, kRound, kNan> : ScaledRow<kRound, std::int8_t> {
  static constexpr float kUnit = 1;
  static constexpr std::size_t kVectors = kLineBytes / kDotLanes;
  struct Shared {
    explicit HWY_INLINE Shared(const float* /*e2m1_table*/) {}
  };

  HWY_INLINE bool begin(std::size_t group) {
    this->factor = hn::Set(kFloats, this->scales.at(group));
    return true;
  }
  HWY_INLINE std::size_t load(const Shared& /*shared*/, std::size_t k) const { return k; }
  HWY_INLINE Lanes lanes(const Shared& shared, std::size_t k, std::size_t j) const {
    return sixteen(shared, k + j * kDotLanes);
  }
  HWY_INLINE Lanes sixteen(const Shared& /*shared*/, std::size_t k) const {
    Lanes out;
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto bytes = hn::LoadU(kSignedCodes, this->codes + k + p * kVectorLanes);
      out.part[p] = hn::ConvertTo(kFloats, hn::PromoteTo(kIntegers, bytes));
    }
    return maybe_rounded<kRound>(scaled_lanes(out, this->factor));
  }
};

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
