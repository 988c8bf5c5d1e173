// The eight lanes of a unit are as many vectors of doubles as it takes; each lane adds its columns
// in order, so that every width of vector gives the same sums.

#include <algorithm>
#include <array>
#include <bit>
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
constexpr hn::Rebind<float, decltype(kDoubles)> kHalves;  // one float for each double
constexpr hn::CappedTag<float, kQualityStep> kFloats;
constexpr hn::RebindToUnsigned<decltype(kDoubles)> kLongs;
using Doubles = hn::Vec<decltype(kDoubles)>;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kLanes = hn::MaxLanes(kDoubles);
constexpr std::size_t kVectors = kQualityStep / kLanes;
constexpr std::size_t kFloatLanes = hn::MaxLanes(kFloats);
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
using Ints = hn::Vec<decltype(kInts)>;

/// The sum of the lanes, of which the upper half is added to the lower one until one is left.
template <typename Tag>
HWY_INLINE double sum_of_halves(Tag /*tag*/, hn::Vec<Tag> lanes) {
  if constexpr (hn::MaxLanes(Tag()) == 1) {
    return hn::GetLane(lanes);
  } else {
    constexpr hn::Half<Tag> kHalf;
    return sum_of_halves(kHalf, hn::Add(hn::LowerHalf(kHalf, lanes), hn::UpperHalf(kHalf, lanes)));
  }
}

/// Sums of eight lanes.
struct Lanes {
  HWY_INLINE Lanes() {
    for (Doubles& vector : vectors) vector = hn::Zero(kDoubles);
  }
  /// Folds the lanes as fold_lanes() does.
  [[nodiscard]] HWY_INLINE double folded() {
    for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
      for (std::size_t k = 0; k < half; ++k) vectors[k] = hn::Add(vectors[k], vectors[k + half]);
    }
    return sum_of_halves(kDoubles, vectors[0]);
  }

  Doubles vectors[kVectors];
};

/// Counts over a whole row, in any order.
struct Totals {
  HWY_INLINE Totals()
      : largest(hn::Zero(kInts)), saturated(hn::Zero(kInts)), zeroed(hn::Zero(kInts)) {}

  Ints largest;  ///< bits of magnitudes, which have the order of the magnitudes
  Ints saturated, zeroed;
};

HWY_INLINE void count(Ints& counts, hn::Mask<decltype(kInts)> mask) {
  counts = hn::Sub(counts, hn::VecFromMask(kInts, mask));
}

struct Unit {
  // Said, so that it is compiled for the target.
  HWY_INLINE Unit() {}  // NOLINT(modernize-use-equals-default)

  /// Eight columns. Floats are widened as they are loaded, which costs less than to widen halves of
  /// vectors; magnitudes are compared as integers, for which processors have more units.
  HWY_INLINE void add(const float* values, const float* decoded, Ints limit, Ints& largest,
                      Totals& totals) {
    for (std::size_t k = 0; k < kQualityStep; k += kFloatLanes) {
      const Floats stored = hn::LoadU(kFloats, decoded + k);
      const Floats error = hn::Sub(hn::LoadU(kFloats, values + k), stored);
      const Ints distance = hn::BitCast(kInts, hn::Abs(error));
      largest = hn::Max(largest, distance);
      count(totals.saturated, hn::Gt(distance, limit));
      const auto is_zero = hn::RebindMask(kInts, hn::Eq(stored, hn::Zero(kFloats)));
      count(totals.zeroed, hn::And(is_zero, hn::Gt(distance, hn::Zero(kInts))));
    }
    const Doubles kept = hn::BitCast(kDoubles, hn::Set(kLongs, kErrorBits));
    for (std::size_t k = 0; k < kVectors; ++k) {
      const Doubles value = hn::PromoteTo(kDoubles, hn::LoadU(kHalves, values + k * kLanes));
      const Doubles stored = hn::PromoteTo(kDoubles, hn::LoadU(kHalves, decoded + k * kLanes));
      const Doubles error = hn::And(hn::Sub(value, stored), kept);
      // Products of numbers with 24 bits are exact in doubles, so that a fused multiply-add rounds
      // as a multiplication and an addition do.
      error2.vectors[k] = hn::MulAdd(error, error, error2.vectors[k]);
      reference2.vectors[k] = hn::MulAdd(value, value, reference2.vectors[k]);
      product.vectors[k] = hn::MulAdd(value, stored, product.vectors[k]);
    }
  }

  Lanes error2, reference2, product;
};

HWY_INLINE std::uint64_t total(Ints counts) {
  return static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(kInts, counts)));
}

}  // namespace

void measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                 const float* thresholds, std::uint8_t* inexact, QualitySums& sums) {
  Totals totals;
  std::array<float, kQualityUnit> last_values, last_decoded;
  for (std::size_t begin = 0, k = 0; begin < n; begin += kQualityUnit) {  // k: of the step
    std::size_t cols = std::min(n - begin, kQualityUnit);
    const float *unit_values = values + begin, *unit_decoded = decoded + begin;
    if (cols % kQualityStep != 0) {  // the last columns of the row, before zeros, which add nothing
      std::fill(std::copy_n(unit_values, cols, last_values.data()), last_values.end(), 0.0F);
      std::fill(std::copy_n(unit_decoded, cols, last_decoded.data()), last_decoded.end(), 0.0F);
      unit_values = last_values.data();
      unit_decoded = last_decoded.data();
      cols = (cols / kQualityStep + 1) * kQualityStep;
    }
    Unit unit;
    for (std::size_t c = 0; c < cols; ++k) {
      const std::size_t end = std::min(c + step, cols);
      const Ints limit = hn::BitCast(kInts, hn::Set(kFloats, thresholds[k]));
      Ints largest = hn::Zero(kInts);  // largest difference of the step
      for (; c < end; c += kQualityStep)
        unit.add(unit_values + c, unit_decoded + c, limit, largest, totals);
      if (!hn::AllTrue(kInts, hn::Eq(largest, hn::Zero(kInts)))) inexact[k] = 1;
      totals.largest = hn::Max(totals.largest, largest);
    }
    sums.error2 += unit.error2.folded();
    sums.reference2 += unit.reference2.folded();
    sums.product += unit.product.folded();
  }
  sums.saturated += total(totals.saturated);
  sums.zeroed += total(totals.zeroed);
  const std::int32_t largest = hn::GetLane(hn::MaxOfLanes(kInts, totals.largest));
  sums.max_error = std::max(sums.max_error, double{std::bit_cast<float>(largest)});
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
      const double error =
          std::bit_cast<double>(std::bit_cast<std::uint64_t>(value - stored) & kErrorBits);
      error2[c % kQualityStep] += error * error;
      reference2[c % kQualityStep] += value * value;
      product[c % kQualityStep] += value * stored;
      sums.max_error = std::max(sums.max_error, double{difference});
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
