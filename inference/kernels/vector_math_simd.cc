// Exponentials and sums over vectors: the steps of vector_math_scalar.cc, sixteen lanes at a time.
// The rest that fills no vector goes through the twin's own functions.

#include <cstddef>
#include <limits>

#include "formats/base/error.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/vector_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/vector_math_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "inference/kernels/dot_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
namespace {

using Integers = hn::Vec<decltype(kIntegers)>;

HWY_INLINE Floats power_of_two(Integers n) {
  return hn::BitCast(kFloats, hn::ShiftLeft<23>(hn::Add(n, hn::Set(kIntegers, 127))));
}

/// exp_f32 of each lane; NaN gives some NaN.
HWY_INLINE Floats exponential(Floats x) {
  const Floats round = hn::Set(kFloats, kRoundToInteger);
  const Floats sum = hn::Add(hn::Mul(x, hn::Set(kFloats, kInverseLn2)), round);
  const Floats n = hn::Sub(sum, round);
  const Integers whole = hn::Sub(hn::BitCast(kIntegers, sum), hn::BitCast(kIntegers, round));
  const Floats r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(kFloats, kLn2High))),
                           hn::Mul(n, hn::Set(kFloats, kLn2Low)));
  Floats p = hn::Set(kFloats, kExpCoefficients[0]);
  for (std::size_t i = 1; i < std::size(kExpCoefficients); ++i) {
    p = hn::Add(hn::Mul(p, r), hn::Set(kFloats, kExpCoefficients[i]));
  }
  const Floats e = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(kFloats, 1.0F));
  const Integers half = hn::ShiftRight<1>(whole);
  const Floats value = hn::Mul(hn::Mul(e, power_of_two(half)), power_of_two(hn::Sub(whole, half)));
  const Floats infinity = hn::Set(kFloats, std::numeric_limits<float>::infinity());
  const Floats not_low = hn::IfThenZeroElse(hn::Lt(x, hn::Set(kFloats, kExpLowest)), value);
  const Floats finite = hn::IfThenElse(hn::Gt(x, hn::Set(kFloats, kExpLargest)), infinity, not_low);
  return hn::IfThenElse(hn::IsNaN(x), x, finite);
}

HWY_INLINE Floats rounded_number(Floats value) {
  return hn::IfThenElse(hn::IsNaN(value), value, rounded_to_bf16(value));
}

HWY_INLINE DotLanes stored(const Lanes& lanes) {
  DotLanes out;
  store_lanes(lanes, out.data());
  return out;
}

}  // namespace

float dot(std::span<const float> x, std::span<const float> y) {
  const float* a = x.data();
  const float* b = y.data();
  const std::size_t n = x.size();
  Lanes sums = zero_lanes();
  std::size_t k = 0;
  for (; k + kDotLanes <= n; k += kDotLanes)
    add_product(load_lanes(a + k), load_lanes(b + k), sums);
  DotLanes lanes = stored(sums);
  add_products(a + k, b + k, n - k, lanes);
  return ingot::inference::one_nan(fold_lanes(lanes));
}

void softmax(std::span<float> values) {
  float* x = values.data();
  const std::size_t n = values.size();
  Floats most = hn::Set(kFloats, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kVectorLanes <= n; i += kVectorLanes) {
    const Floats value = hn::LoadU(kFloats, x + i);
    most = hn::IfThenElse(hn::Gt(value, most), value, most);
  }
  float largest = hn::GetLane(hn::MaxOfLanes(kFloats, most));
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;

  const Floats shift = hn::Set(kFloats, largest);
  Lanes sums = zero_lanes();
  for (i = 0; i + kDotLanes <= n; i += kDotLanes) {
    HWY_UNROLL(4)
    for (std::size_t p = 0; p < kParts; ++p) {
      float* at = x + i + p * kVectorLanes;
      const Floats value = exponential(hn::Sub(hn::LoadU(kFloats, at), shift));
      hn::StoreU(value, kFloats, at);
      sums.part[p] = hn::Add(sums.part[p], value);
    }
  }
  DotLanes lanes = stored(sums);
  exponentials(x + i, n - i, largest, lanes);
  const float sum = fold_lanes(lanes);
  const Floats divisor = hn::Set(kFloats, sum);
  for (i = 0; i + kVectorLanes <= n; i += kVectorLanes) {
    hn::StoreU(one_nan(kFloats, hn::Div(hn::LoadU(kFloats, x + i), divisor)), kFloats, x + i);
  }
  for (; i < n; ++i) x[i] = ingot::inference::one_nan(x[i] / sum);
}

void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16) {
  const std::size_t n = out.size();
  std::size_t i = 0;
  for (; i + kVectorLanes <= n; i += kVectorLanes) {
    const Floats g = hn::LoadU(kFloats, gate.data() + i);
    const Floats one = hn::Set(kFloats, 1.0F);
    Floats silu = hn::Div(g, hn::Add(one, exponential(hn::Neg(g))));
    if (round_bf16) silu = rounded_number(silu);
    Floats product = hn::Mul(silu, hn::LoadU(kFloats, up.data() + i));
    if (round_bf16) product = rounded_number(product);
    hn::StoreU(one_nan(kFloats, product), kFloats, out.data() + i);
  }
  scalar::silu_multiply(gate.subspan(i), up.subspan(i), out.subspan(i), round_bf16);
}

#else
using scalar::dot;
using scalar::silu_multiply;
using scalar::softmax;
#endif
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::inference {
namespace {
HWY_EXPORT(dot);
HWY_EXPORT(softmax);
HWY_EXPORT(silu_multiply);
}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  INGOT_CHECK(a.size() == b.size());
  return HWY_DYNAMIC_DISPATCH(dot)(a, b);
}

float sum_of_squares(std::span<const float> x) {
  return dot(x, x);
}

void softmax(std::span<float> x) {
  HWY_DYNAMIC_DISPATCH(softmax)(x);
}

void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16) {
  INGOT_CHECK(gate.size() == out.size() && up.size() == out.size());
  HWY_DYNAMIC_DISPATCH(silu_multiply)(gate, up, out, round_bf16);
}

}  // namespace ingot::inference
#endif
