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
  HWY_INLINE Totals() : largest(hn::Zero(kFloats)) {}

  Floats largest;
  std::size_t saturated = 0, zeroed = 0;
};

struct Unit {
  // Said, so that it is compiled for the target.
  HWY_INLINE Unit() {}  // NOLINT(modernize-use-equals-default)

  /// Eight columns: the sums, in doubles.
  HWY_INLINE void add(const float* values, const float* decoded) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto value = hn::LoadU(kHalves, values + k * kLanes);
      const auto stored = hn::LoadU(kHalves, decoded + k * kLanes);
      const Doubles error = hn::PromoteTo(kDoubles, hn::Sub(value, stored));
      const Doubles wide = hn::PromoteTo(kDoubles, value);
      error2.add(k, error, error);
      reference2.add(k, wide, wide);
      product.add(k, wide, hn::PromoteTo(kDoubles, stored));
    }
  }

  Lanes error2, reference2, product;
};

/// Eight columns: counts and the largest error, in floats, half as wide. Returns whether any value
/// differs.
HWY_INLINE bool look_at(const float* values, const float* decoded, float threshold,
                        Totals& totals) {
  const Floats limit = hn::Set(kFloats, threshold);
  const Floats zero = hn::Zero(kFloats);
  bool differs = false;
  for (std::size_t k = 0; k < kQualityStep; k += kFloatLanes) {
    const Floats value = hn::LoadU(kFloats, values + k);
    const Floats stored = hn::LoadU(kFloats, decoded + k);
    const Floats error = hn::Abs(hn::Sub(value, stored));
    totals.largest = hn::Max(totals.largest, error);
    const auto beyond = hn::Gt(error, limit);
    // Rare, unlike zeros.
    if (!hn::AllFalse(kFloats, beyond)) totals.saturated += hn::CountTrue(kFloats, beyond);
    totals.zeroed += hn::CountTrue(kFloats, hn::And(hn::Eq(stored, zero), hn::Ne(value, zero)));
    differs = !hn::AllFalse(kFloats, hn::Ne(value, stored)) || differs;
  }
  return differs;
}

}  // namespace

void measure_row(const float* values, const float* decoded, std::size_t n, const float* thresholds,
                 std::uint8_t* inexact, QualitySums& sums) {
  Totals totals;
  for (std::size_t begin = 0; begin < n; begin += kQualityUnit) {
    const std::size_t end = std::min(begin + kQualityUnit, n);
    Unit unit;
    std::size_t c = begin;
    for (; c + kQualityStep <= end; c += kQualityStep) unit.add(values + c, decoded + c);
    std::array<float, kQualityStep> last_values{};
    std::array<float, kQualityStep> last_decoded{};
    if (c < end) {  // the last columns of the row, among zeros, which add nothing
      std::copy(values + c, values + end, last_values.data());
      std::copy(decoded + c, decoded + end, last_decoded.data());
      unit.add(last_values.data(), last_decoded.data());
    }
    for (std::size_t at = begin; at < end; at += kQualityStep) {
      const std::size_t step = at / kQualityStep;
      const bool is_last = at == c;
      const bool differs =
          look_at(is_last ? last_values.data() : values + at,
                  is_last ? last_decoded.data() : decoded + at, thresholds[step], totals);
      inexact[step] = static_cast<std::uint8_t>(inexact[step] | (differs ? 1U : 0U));
    }
    sums.error2 += unit.error2.folded();
    sums.reference2 += unit.reference2.folded();
    sums.product += unit.product.folded();
  }
  sums.saturated += totals.saturated;
  sums.zeroed += totals.zeroed;
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

void scalar::measure_row(const float* values, const float* decoded, std::size_t n,
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
      sums.saturated += difference > thresholds[c / kQualityStep] ? 1U : 0U;
      sums.zeroed += value != 0 && stored == 0 ? 1 : 0;
      if (value != stored) inexact[c / kQualityStep] = 1;
    }
    sums.error2 += fold_lanes(error2.data());
    sums.reference2 += fold_lanes(reference2.data());
    sums.product += fold_lanes(product.data());
  }
}

void measure_row(const float* values, const float* decoded, std::size_t n, const float* thresholds,
                 std::uint8_t* inexact, QualitySums& sums) {
  HWY_DYNAMIC_DISPATCH(measure_row)(values, decoded, n, thresholds, inexact, sums);
}

}  // namespace ingot::quantize
#endif
