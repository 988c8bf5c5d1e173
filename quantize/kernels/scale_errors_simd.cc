// The error of groups under scales that are tried.
//
// The nearest code's value is y + u - u, with u so large that the last place of the sum is the step
// of codes there (code_encode_simd.cc). The mantissa of u is 1.5, which leaves room on both sides,
// so that signs need no care.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/scale_errors.h"

// Facts of both twins; once, whatever the number of targets.
#ifndef INGOT_QUANTIZE_SCALE_ERRORS_
#define INGOT_QUANTIZE_SCALE_ERRORS_
namespace ingot::quantize {

inline constexpr std::size_t kErrorLanes = 16;

inline float folded_error(std::array<float, kErrorLanes> sums) {
  for (std::size_t half = kErrorLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace ingot::quantize
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/scale_errors_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kErrorLanes> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kVectorLanes = hn::MaxLanes(kFloats);
constexpr std::size_t kParts = kErrorLanes / kVectorLanes;

/// Rounds to a mantissa of so many bits, and to multiples of the step of 2^kFirstExponent below it.
template <std::uint32_t kMantissaBits, int kFirstExponent>
HWY_INLINE Floats rounded(Floats y) {
  const auto own = hn::And(hn::BitCast(kWords, y), hn::Set(kWords, 0x7F800000U));
  const Floats power =
      hn::Max(hn::BitCast(kFloats, own),
              hn::BitCast(kFloats,
                          hn::Set(kWords, static_cast<std::uint32_t>(kFirstExponent + 127) << 23)));
  const auto unit = hn::Add(hn::BitCast(kWords, power),
                            hn::Set(kWords, ((23 - kMantissaBits) << 23) | 0x400000U));
  return hn::Sub(hn::Add(y, hn::BitCast(kFloats, unit)), hn::BitCast(kFloats, unit));
}

HWY_INLINE Floats cut_off(Floats y, float largest) {
  return hn::Max(hn::Min(y, hn::Set(kFloats, largest)), hn::Set(kFloats, -largest));
}

struct E4m3 {
  static HWY_INLINE Floats nearest(Floats y) { return rounded<3, -6>(y); }
};

struct Int8 {
  static HWY_INLINE Floats nearest(Floats y) {
    const Floats integers = hn::Set(kFloats, 0x1.8p23F);
    return hn::Sub(hn::Add(cut_off(y, 127.0F), integers), integers);
  }
};

struct E2m1 {
  static HWY_INLINE Floats nearest(Floats y) { return rounded<1, 0>(cut_off(y, 6.0F)); }
};

/// Adds the terms of sixteen columns to their sums; `weights` is null where all are 1.
template <typename Code>
HWY_INLINE void add_terms(const float* values, const float* weights, Floats inverse, Floats* sums) {
  for (std::size_t p = 0; p < kParts; ++p) {
    const Floats y = hn::Mul(hn::LoadU(kFloats, values + p * kVectorLanes), inverse);
    const Floats rest = hn::Sub(y, Code::nearest(y));
    Floats term = hn::Mul(rest, rest);
    if (weights != nullptr) term = hn::Mul(term, hn::LoadU(kFloats, weights + p * kVectorLanes));
    sums[p] = hn::Add(sums[p], term);
  }
}

template <typename Code>
HWY_INLINE float error_of(formats::MatrixView<const float> group, const float* weights,
                          float scale) {
  const Floats inverse = hn::Set(kFloats, 1.0F / scale);
  Floats sums[kParts];
  for (std::size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(kFloats);
  const std::size_t whole = group.cols - group.cols % kErrorLanes;
  for (std::size_t r = 0; r < group.rows; ++r) {
    const float* row = group.row(r);
    if (weights == nullptr) {
      for (std::size_t c = 0; c < whole; c += kErrorLanes)
        add_terms<Code>(row + c, nullptr, inverse, sums);
    } else {
      for (std::size_t c = 0; c < whole; c += kErrorLanes)
        add_terms<Code>(row + c, weights + c, inverse, sums);
    }
    if (whole == group.cols) continue;
    // Zeros behind the end have no error.
    alignas(64) std::array<float, kErrorLanes> values{}, some_weights{};
    std::copy(row + whole, row + group.cols, values.data());
    if (weights != nullptr) std::copy(weights + whole, weights + group.cols, some_weights.data());
    add_terms<Code>(values.data(), weights == nullptr ? nullptr : some_weights.data(), inverse,
                    sums);
  }
  alignas(64) std::array<float, kErrorLanes> lanes;
  for (std::size_t p = 0; p < kParts; ++p)
    hn::StoreU(sums[p], kFloats, lanes.data() + p * kVectorLanes);
  return folded_error(lanes);
}

template <typename Code>
HWY_INLINE void errors_of(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  const auto block_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, in.values.cols));
  const auto block_rows =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_rows, in.values.rows));
  std::size_t g = 0;
  for (std::size_t r = 0; r < in.values.rows; r += block_rows) {
    for (std::size_t c = 0; c < in.values.cols; c += block_cols, ++g) {
      const formats::MatrixView<const float> group = {
          .data = in.values.row(r) + c,
          .rows = std::min(block_rows, in.values.rows - r),
          .cols = std::min(block_cols, in.values.cols - c),
          .stride = in.values.stride};
      errors[g] = error_of<Code>(group, weights == nullptr ? nullptr : weights + c, in.scales[g]);
    }
  }
}

}  // namespace

void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  errors_of<E4m3>(in, weights, errors);
}

void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  errors_of<Int8>(in, weights, errors);
}

void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  errors_of<E2m1>(in, weights, errors);
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(e4m3_errors);
HWY_EXPORT(int8_errors);
HWY_EXPORT(e2m1_errors);

/// False for an empty run; scales and errors of any other must cover it.
bool has_groups(const ScaledGroups& in, std::span<const float> errors) {
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  INGOT_CHECK(in.block_rows > 0 && in.block_cols > 0);
  const std::uint64_t n =
      ceil_div(in.values.cols, in.block_cols) * ceil_div(in.values.rows, in.block_rows);
  INGOT_CHECK(in.scales.size() >= n && errors.size() >= n);
  return true;
}

/// One value after the other; nearest(y) is the value of the code.
template <typename Nearest>
void sum_errors(const ScaledGroups& in, const float* weights, std::span<float> errors,
                const Nearest& nearest) {
  std::vector<std::array<float, kErrorLanes>> sums(in.scales.size());
  for_each_group_piece(in.values, in.block_rows, in.block_cols, in.scales.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         const float inverse = 1.0F / in.scales[group];
                         for (std::size_t c = begin; c < end; ++c) {
                           const float y = in.values.row(r)[c] * inverse;
                           const float rest = y - nearest(y);
                           float term = rest * rest;
                           if (weights != nullptr) term *= weights[c];
                           sums[group][(c - begin) % kErrorLanes] += term;
                         }
                       });
  for (std::size_t g = 0; g < std::min(sums.size(), errors.size()); ++g)
    errors[g] = folded_error(sums[g]);
}

}  // namespace

void scalar::e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  sum_errors(in, weights, errors,
             [](float y) { return formats::kE4m3Values[formats::e4m3_from_float(y)]; });
}

void scalar::int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  sum_errors(in, weights, errors,
             [](float y) { return std::nearbyint(std::clamp(y, -127.0F, 127.0F)); });
}

void scalar::e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  sum_errors(in, weights, errors, [](float y) {
    return std::copysign(kE2m1Magnitudes[e2m1_from_magnitude(std::fabs(y))], y);
  });
}

void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  if (has_groups(in, errors)) HWY_DYNAMIC_DISPATCH(e4m3_errors)(in, weights, errors);
}

void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  if (has_groups(in, errors)) HWY_DYNAMIC_DISPATCH(int8_errors)(in, weights, errors);
}

void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors) {
  if (has_groups(in, errors)) HWY_DYNAMIC_DISPATCH(e2m1_errors)(in, weights, errors);
}

}  // namespace ingot::quantize
#endif
