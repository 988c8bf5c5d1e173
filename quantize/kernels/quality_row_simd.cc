// The eight lanes of a unit are as many vectors of doubles as it takes; each lane adds its columns
// in order, so that every width of vector gives the same sums.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quantize/kernels/quality_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/quality_row_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

using scalar::measure_row;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<double, kQualityStep> kDoubles;
constexpr hn::Rebind<float, decltype(kDoubles)> kHalves;  // as many floats as there are doubles
constexpr hn::CappedTag<float, kQualityStep> kFloats;
using Doubles = hn::Vec<decltype(kDoubles)>;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kLanes = hn::MaxLanes(kDoubles);
constexpr std::size_t kVectors = kQualityStep / kLanes;
constexpr std::size_t kFloatLanes = hn::MaxLanes(kFloats);
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
using Ints = hn::Vec<decltype(kInts)>;

/// Sums of eight lanes.
struct Lanes {
  HWY_INLINE Lanes() {
    for (Doubles& vector : vectors) vector = hn::Zero(kDoubles);
  }
  /// Adds products of numbers that were floats: exact in doubles, so that a fused multiply-add
  /// rounds as a multiplication and an addition do.
  HWY_INLINE void add(std::size_t vector, Doubles a, Doubles b) {
    vectors[vector] = hn::MulAdd(a, b, vectors[vector]);
  }
  [[nodiscard]] HWY_INLINE double folded() const {
    std::array<double, kQualityStep> lanes;
    for (std::size_t k = 0; k < kVectors; ++k)
      hn::StoreU(vectors[k], kDoubles, lanes.data() + k * kLanes);
    return fold_lanes(lanes.data());
  }

  Doubles vectors[kVectors];
};

/// Counts over a whole row, in any order.
struct Totals {
  HWY_INLINE Totals()
      : largest(hn::Zero(kFloats)), saturated(hn::Zero(kInts)), zeroed(hn::Zero(kInts)) {}

  Floats largest;
  Ints saturated, zeroed;
};

HWY_INLINE void count(Ints& counts, hn::Mask<decltype(kFloats)> mask) {
  counts = hn::Sub(counts, hn::BitCast(kInts, hn::VecFromMask(kFloats, mask)));
}

/// Where doubles are as many as floats there is one half.
template <bool kUpper, typename Vector>
HWY_INLINE Doubles widened(Vector floats) {
  if constexpr (kFloatLanes == kLanes) {
    return hn::PromoteTo(kDoubles, floats);
  } else if constexpr (kUpper) {
    return hn::PromoteTo(kDoubles, hn::UpperHalf(kHalves, floats));
  } else {
    return hn::PromoteTo(kDoubles, hn::LowerHalf(kHalves, floats));
  }
}

struct Unit {
  // Said, so that it is compiled for the target.
  HWY_INLINE Unit() {}  // NOLINT(modernize-use-equals-default)

  /// Eight columns: the sums in doubles; counts and the largest error in floats, half as wide.
  HWY_INLINE void add(const float* values, const float* decoded, Floats limit, Floats& differs,
                      Totals& totals) {
    for (std::size_t k = 0; k < kQualityStep; k += kFloatLanes) {
      const Floats value = hn::LoadU(kFloats, values + k);
      const Floats stored = hn::LoadU(kFloats, decoded + k);
      const Floats error = hn::Sub(value, stored);
      add_lanes(k, values, decoded, widened<false>(error));
      if (kFloatLanes > kLanes) add_lanes(k + kLanes, values, decoded, widened<true>(error));
      const Floats distance = hn::Abs(error);
      totals.largest = hn::Max(totals.largest, distance);
      count(totals.saturated, hn::Gt(distance, limit));
      const auto is_other = hn::Ne(value, stored);
      count(totals.zeroed, hn::And(hn::Eq(stored, hn::Zero(kFloats)), is_other));
      differs = hn::Or(differs, hn::VecFromMask(kFloats, is_other));
    }
  }

  Lanes error2, reference2, product;

 private:
  HWY_INLINE void add_lanes(std::size_t column, const float* values, const float* decoded,
                            Doubles error) {
    const std::size_t vector = column / kLanes;
    const Doubles value = hn::PromoteTo(kDoubles, hn::LoadU(kHalves, values + column));
    const Doubles stored = hn::PromoteTo(kDoubles, hn::LoadU(kHalves, decoded + column));
    error2.add(vector, error, error);
    reference2.add(vector, value, value);
    product.add(vector, value, stored);
  }
};

HWY_INLINE std::uint64_t total(Ints counts) {
  return static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(kInts, counts)));
}

}  // namespace

void measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                 const float* thresholds, std::uint8_t* inexact, QualitySums& sums) {
  Totals totals;
  std::size_t k = 0;  // of the step
  for (std::size_t begin = 0; begin < n; begin += kQualityUnit) {
    const std::size_t end = std::min(begin + kQualityUnit, n);
    Unit unit;
    for (std::size_t c = begin; c < end; ++k) {
      const std::size_t last = std::min(c + step, end);
      const Floats limit = hn::Set(kFloats, thresholds[k]);
      Floats differs = hn::Zero(kFloats);
      for (; c + kQualityStep <= last; c += kQualityStep)
        unit.add(values + c, decoded + c, limit, differs, totals);
      if (c < last) {  // the last columns of the row, among zeros, which add nothing
        std::array<float, kQualityStep> last_values{};
        std::array<float, kQualityStep> last_decoded{};
        std::copy(values + c, values + last, last_values.data());
        std::copy(decoded + c, decoded + last, last_decoded.data());
        unit.add(last_values.data(), last_decoded.data(), limit, differs, totals);
        c = last;
      }
      if (!hn::AllFalse(kFloats, hn::MaskFromVec(differs))) inexact[k] = 1;
    }
    sums.error2 += unit.error2.folded();
    sums.reference2 += unit.reference2.folded();
    sums.product += unit.product.folded();
  }
  sums.saturated += total(totals.saturated);
  sums.zeroed += total(totals.zeroed);
  std::array<float, kFloatLanes> largest;
  hn::StoreU(totals.largest, kFloats, largest.data());
  sums.max_error =
      std::max(sums.max_error, double{*std::max_element(largest.begin(), largest.end())});
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(measure_row);
}  // namespace

void scalar::measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                         const float* thresholds, std::uint8_t* inexact, QualitySums& sums) {
  for (std::size_t begin = 0; begin < n; begin += kQualityUnit) {
    std::array<double, kQualityStep> error2{}, reference2{}, product{};
    for (std::size_t c = begin; c < std::min(begin + kQualityUnit, n); ++c) {
      const double value = values[c];
      const double stored = decoded[c];
      const float difference = std::fabs(values[c] - decoded[c]);
      const double error = difference;
      error2[c % kQualityStep] += error * error;
      reference2[c % kQualityStep] += value * value;
      product[c % kQualityStep] += value * stored;
      sums.max_error = std::max(sums.max_error, error);
      sums.saturated += difference > thresholds[c / step] ? 1U : 0U;
      sums.zeroed += value != 0 && stored == 0 ? 1 : 0;
      if (value != stored) inexact[c / step] = 1;
    }
    sums.error2 += fold_lanes(error2.data());
    sums.reference2 += fold_lanes(reference2.data());
    sums.product += fold_lanes(product.data());
  }
}

void measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                 const float* thresholds, std::uint8_t* inexact, QualitySums& sums) {
  HWY_DYNAMIC_DISPATCH(measure_row)(values, decoded, n, step, thresholds, inexact, sums);
}

}  // namespace ingot::quantize
#endif
