// Dot products in the lanes of decoders: sums of products, and their fold (dot_lanes.h). Included
// once per target, outside of any namespace.

#if defined(INGOT_INFERENCE_KERNELS_DOT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_DOT_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_DOT_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_DOT_LANES_INL_H_
#endif

#include <cstddef>

#include <hwy/highway.h>

#include "inference/kernels/dot_lanes.h"
#include "quantize/kernels/coded_lanes-inl.h"

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
namespace {

using namespace quantize::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

constexpr hn::Full128<float> kFourFloats;
using FourFloats = hn::Vec<decltype(kFourFloats)>;

/// sum + a x b, both rounded.
HWY_INLINE void add_product(const Lanes& a, const Lanes& b, Lanes& sum) {
  HWY_UNROLL(4)
  for (std::size_t p = 0; p < kParts; ++p) {
    sum.part[p] = hn::Add(sum.part[p], hn::Mul(a.part[p], b.part[p]));
  }
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

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
