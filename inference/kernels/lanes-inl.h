// The sixteen lanes of a dot product in registers: one vector of 512 bits, or several shorter ones.
// Included once per target, inside nothing.

// Per-target include guard.
#if defined(INGOT_INFERENCE_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_LANES_INL_H_
#endif

#include <cstddef>

#include <hwy/highway.h>

#include "inference/kernels/matmul.h"

// Targets whose vectors have no size at compile time run the scalar twins, as does the one without
// vectors.
#undef INGOT_HAS_LANES
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#define INGOT_HAS_LANES 0
#else
#define INGOT_HAS_LANES 1
#endif

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
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

constexpr hn::Full128<float> kFourFloats;
using FourFloats = hn::Vec<decltype(kFourFloats)>;

/// Lane i is element i % kVectorLanes of part i / kVectorLanes.
struct Lanes {
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

/// sum + a x b, both rounded.
HWY_INLINE void add_product(const Lanes& a, const Lanes& b, Lanes& sum) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) {
    sum.part[p] = hn::Add(sum.part[p], hn::Mul(a.part[p], b.part[p]));
  }
}

HWY_INLINE Lanes scaled_lanes(Lanes lanes, Floats factor) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Mul(lanes.part[p], factor);
  return lanes;
}

/// To BF16 and back, as formats::bf16_from_float rounds; a NaN must not have all bits set.
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

/// The first two or one steps of fold_lanes (dot_lanes.h): lane i takes lane i + 8, then i + 4.
HWY_INLINE FourFloats quarter(const Lanes& lanes) {
#if HWY_MAX_BYTES >= 64
  const hn::Half<decltype(kFloats)> half;
  const auto eight =
      hn::Add(hn::LowerHalf(half, lanes.part[0]), hn::UpperHalf(half, lanes.part[0]));
  return hn::Add(hn::LowerHalf(kFourFloats, eight), hn::UpperHalf(kFourFloats, eight));
#elif HWY_MAX_BYTES >= 32
  const auto eight = hn::Add(lanes.part[0], lanes.part[1]);
  return hn::Add(hn::LowerHalf(kFourFloats, eight), hn::UpperHalf(kFourFloats, eight));
#else
  return hn::Add(hn::Add(lanes.part[0], lanes.part[2]), hn::Add(lanes.part[1], lanes.part[3]));
#endif
}

/// fold_lanes of four dot products.
HWY_INLINE FourFloats fold_four(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
  const FourFloats a4 = quarter(a);
  const FourFloats b4 = quarter(b);
  const FourFloats c4 = quarter(c);
  const FourFloats d4 = quarter(d);
  const FourFloats ab =
      hn::Add(hn::ConcatLowerLower(kFourFloats, b4, a4), hn::ConcatUpperUpper(kFourFloats, b4, a4));
  const FourFloats cd =
      hn::Add(hn::ConcatLowerLower(kFourFloats, d4, c4), hn::ConcatUpperUpper(kFourFloats, d4, c4));
  return hn::Add(hn::ConcatEven(kFourFloats, cd, ab), hn::ConcatOdd(kFourFloats, cd, ab));
}

/// one_nan (dot_lanes.h) of every element.
template <class D>
HWY_INLINE hn::Vec<D> one_nan(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> words;
  return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, hn::Set(words, 0x7FC00000U)), value);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
