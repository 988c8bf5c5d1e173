// Which scale of a group of INT4 codes leaves the least error. A group is short and stays in the
// first-level cache, so each candidate is tried on the whole of it.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "quantize/kernels/int4_scales.h"
#include "quantize/kernels/row_scan.h"

// Inputs of both twins; once, whatever the number of targets.
#ifndef INGOT_QUANTIZE_INT4_GROUP_
#define INGOT_QUANTIZE_INT4_GROUP_
namespace ingot::quantize {

/// One group in units in which its amax is a number from 1 to 2.
struct Int4Group {
  const float* values = nullptr;
  const float* weights = nullptr;  ///< null: all 1
  std::size_t n = 0;
  float unit = 1;  ///< a power of two, the factor of the values
};

/// Sums over a group, under a scale in its units.
struct Int4Fit {
  float product = 0;  ///< of x q
  float squares = 0;  ///< of q^2
};

inline constexpr std::size_t kInt4Lanes = 16;
/// The last place of a sum with it is that of integers, with room on both sides.
inline constexpr float kIntegers = 0x1.8p23F;

inline float folded(std::array<float, kInt4Lanes> sums) {
  for (std::size_t half = kInt4Lanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace ingot::quantize
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/int4_scales_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kInt4Lanes> kFloats;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kVectorLanes = hn::MaxLanes(kFloats);
constexpr std::size_t kParts = kInt4Lanes / kVectorLanes;

/// Sixteen sums.
struct Sums {
  HWY_INLINE Sums() {
    for (std::size_t p = 0; p < kParts; ++p) part[p] = hn::Zero(kFloats);
  }
  [[nodiscard]] HWY_INLINE float fold() const {
    alignas(64) std::array<float, kInt4Lanes> sums;
    for (std::size_t p = 0; p < kParts; ++p)
      hn::StoreU(part[p], kFloats, sums.data() + p * kVectorLanes);
    return folded(sums);
  }
  Floats part[kParts];
};

/// Calls visit(part, x, q, weigh) for vectors of the group; values behind its end are zero.
template <typename Visit>
HWY_INLINE void for_each_vector(const Int4Group& group, float scale, const Visit& visit) {
  const Floats unit = hn::Set(kFloats, group.unit);
  const Floats inverse = hn::Set(kFloats, 1 / scale);
  const Floats integers = hn::Set(kFloats, kIntegers);
  const Floats least = hn::Set(kFloats, -8.0F), most = hn::Set(kFloats, 7.0F);
  const auto see = [&](std::size_t p, const float* values, const float* weights) HWY_ATTR {
    const Floats x = hn::Mul(hn::LoadU(kFloats, values), unit);
    const Floats y = hn::Max(hn::Min(hn::Mul(x, inverse), most), least);
    const Floats q = hn::Sub(hn::Add(y, integers), integers);
    visit(p, x, q, [weights](Floats term) HWY_ATTR {
      return weights == nullptr ? term : hn::Mul(term, hn::LoadU(kFloats, weights));
    });
  };
  std::size_t i = 0;
  for (; i + kInt4Lanes <= group.n; i += kInt4Lanes) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t at = i + p * kVectorLanes;
      see(p, group.values + at, group.weights == nullptr ? nullptr : group.weights + at);
    }
  }
  if (i == group.n) return;
  alignas(64) std::array<float, kInt4Lanes> values{}, weights{};
  std::copy(group.values + i, group.values + group.n, values.data());
  if (group.weights != nullptr)
    std::copy(group.weights + i, group.weights + group.n, weights.data());
  for (std::size_t p = 0; p < kParts; ++p) {
    const std::size_t at = p * kVectorLanes;
    see(p, values.data() + at, group.weights == nullptr ? nullptr : weights.data() + at);
  }
}

}  // namespace

float int4_error(const Int4Group& group, float scale) {
  Sums sums;
  const Floats factor = hn::Set(kFloats, scale);
  for_each_vector(group, scale, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
    // q x scale has at most twelve significant bits: fusing changes nothing.
    const Floats rest = hn::NegMulAdd(q, factor, x);
    sums.part[p] = hn::Add(sums.part[p], weigh(hn::Mul(rest, rest)));
  });
  return sums.fold();
}

Int4Fit int4_fit(const Int4Group& group, float scale) {
  Sums products, squares;
  for_each_vector(group, scale, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
    products.part[p] = hn::Add(products.part[p], weigh(hn::Mul(x, q)));
    squares.part[p] = hn::Add(squares.part[p], weigh(hn::Mul(q, q)));
  });
  return {.product = products.fold(), .squares = squares.fold()};
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(int4_error);
HWY_EXPORT(int4_fit);

/// The twins, as the choice calls them.
struct Kernels {
  float (*error)(const Int4Group& group, float scale);
  Int4Fit (*fit)(const Int4Group& group, float scale);
};

float vector_error(const Int4Group& group, float scale) {
  return HWY_DYNAMIC_DISPATCH(int4_error)(group, scale);
}

Int4Fit vector_fit(const Int4Group& group, float scale) {
  return HWY_DYNAMIC_DISPATCH(int4_fit)(group, scale);
}

/// Calls see(lane, x, q, weight) for one value after the other.
template <typename See>
void for_each_value(const Int4Group& group, float scale, const See& see) {
  const float inverse = 1 / scale;
  for (std::size_t i = 0; i < group.n; ++i) {
    const float x = group.values[i] * group.unit;
    const float q = (std::clamp(x * inverse, -8.0F, 7.0F) + kIntegers) - kIntegers;
    see(i % kInt4Lanes, x, q, group.weights == nullptr ? 1.0F : group.weights[i]);
  }
}

float scalar_error(const Int4Group& group, float scale) {
  std::array<float, kInt4Lanes> sums{};
  for_each_value(group, scale, [&](std::size_t lane, float x, float q, float weight) {
    const float rest = x - q * scale;
    sums[lane] += rest * rest * weight;
  });
  return folded(sums);
}

Int4Fit scalar_fit(const Int4Group& group, float scale) {
  std::array<float, kInt4Lanes> products{}, squares{};
  for_each_value(group, scale, [&](std::size_t lane, float x, float q, float weight) {
    products[lane] += x * q * weight;
    squares[lane] += q * q * weight;
  });
  return {.product = folded(products), .squares = folded(squares)};
}

constexpr float kSmallestScale = 0x1p-133F;
constexpr float kLargestScale = 0x1.FEp127F;

/// A scale above zero as it is stored.
float stored_scale(float scale) {
  return std::clamp(formats::float_from_bf16(formats::bf16_from_float(scale)), kSmallestScale,
                    kLargestScale);
}

/// The power of two that brings amax, above zero, to 1 ... 2, as far as FP32 has it.
float unit_of(float amax) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(amax) >> 23;
  const std::uint32_t wanted = exponent >= 253 ? 1 : 254 - exponent;
  return std::bit_cast<float>(std::min(wanted, 254U) << 23);
}

constexpr int kLastStep = 40;  // 7 + 40 / 8

float choose(const Int4Group& values, float amax, ScaleSearch search, const Kernels& kernels) {
  if (amax == 0) return 1.0F;
  float best = stored_scale(amax / 7);
  if (search == ScaleSearch::kAmax) return best;
  Int4Group group = values;
  group.unit = unit_of(amax);
  float least = kernels.error(group, best * group.unit);
  const auto consider = [&](float scale) {
    const float error = kernels.error(group, scale * group.unit);
    if (!(error < least)) return;
    least = error;
    best = scale;
  };
  for (int step = 0; step <= kLastStep; ++step) {
    const float scale = stored_scale(amax / (7 + static_cast<float>(step) * 0.125F));
    if (step > 0) consider(scale);
    if (search == ScaleSearch::kSigned) consider(-scale);
  }
  const Int4Fit fit = kernels.fit(group, best * group.unit);
  const float fitted = fit.product / fit.squares / group.unit;
  if (std::isfinite(fitted) && fitted != 0)
    consider(std::copysign(stored_scale(std::fabs(fitted)), fitted));
  return best;
}

void choose_all(const Int4Groups& in, std::span<float> scales, const Kernels& kernels) {
  INGOT_CHECK(scales.size() == in.n_groups && in.group_cols > 0);
  for (std::size_t g = 0; g < in.n_groups; ++g) {
    const std::size_t at = g * in.group_cols;
    const Int4Group group{.values = in.values + at,
                          .weights = in.weights == nullptr ? nullptr : in.weights + at,
                          .n = in.group_cols};
    scales[g] = choose(group, finite_amax(group.values, group.n), in.search, kernels);
  }
}

}  // namespace

void choose_int4_scales(const Int4Groups& in, std::span<float> scales) {
  choose_all(in, scales, {.error = vector_error, .fit = vector_fit});
}

void scalar::choose_int4_scales(const Int4Groups& in, std::span<float> scales) {
  choose_all(in, scales, {.error = scalar_error, .fit = scalar_fit});
}

}  // namespace ingot::quantize
#endif
