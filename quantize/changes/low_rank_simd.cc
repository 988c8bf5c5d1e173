// A vector holds columns of one row. A sum of rank products per column is kept in a register for
// each of a few rows, so that numbers of `right` are read and widened once for all of them.

#include <cstddef>

#include "quantize/changes/low_rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/changes/low_rank_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#ifndef INGOT_LOW_RANK_SCALAR
#define INGOT_LOW_RANK_SCALAR
namespace ingot::quantize::scalar {
namespace {

// Columns from `first` on.
void add_columns(const LowRankRows& rows, std::size_t first) {
  for (std::size_t r = 0; r < rows.n_rows; ++r) {
    for (std::size_t c = first; c < rows.n; ++c) {
      double sum = 0;
      for (std::size_t k = 0; k < rows.rank; ++k) {
        sum += static_cast<double>(rows.left[r][k]) *
               static_cast<double>(rows.right[k * rows.right_stride + c]);
      }
      rows.out[r][c] += rows.factor * sum;
    }
  }
}

}  // namespace
}  // namespace ingot::quantize::scalar
#endif

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void add_low_rank(const LowRankRows& rows) {
  scalar::add_columns(rows, 0);
}

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<double, 8> kLowRankDoubles;
constexpr hn::Rebind<float, decltype(kLowRankDoubles)> kLowRankFloats;

/// Adds one vector of columns from `c` on of so many rows.
template <std::size_t kRows>
HWY_INLINE void add_vector(const LowRankRows& rows, std::size_t c) {
  static_assert(kRows == 1 || kRows == kLowRankRows);
  auto sum0 = hn::Zero(kLowRankDoubles), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (std::size_t k = 0; k < rows.rank; ++k) {
    const auto right = hn::PromoteTo(
        kLowRankDoubles, hn::LoadU(kLowRankFloats, rows.right + k * rows.right_stride + c));
    // The products are exact, so a fused addition gives the same sum.
    const auto left = [&](std::size_t r) HWY_ATTR {
      return hn::Set(kLowRankDoubles, static_cast<double>(rows.left[r][k]));
    };
    sum0 = hn::MulAdd(left(0), right, sum0);
    if constexpr (kRows > 1) {
      sum1 = hn::MulAdd(left(1), right, sum1);
      sum2 = hn::MulAdd(left(2), right, sum2);
      sum3 = hn::MulAdd(left(3), right, sum3);
    }
  }
  const auto factor = hn::Set(kLowRankDoubles, rows.factor);
  const auto add = [&](std::size_t r, auto sum) HWY_ATTR {
    double* const out = rows.out[r] + c;
    const auto before = hn::LoadU(kLowRankDoubles, out);
    hn::StoreU(hn::Add(before, hn::Mul(factor, sum)), kLowRankDoubles, out);
  };
  add(0, sum0);
  if constexpr (kRows > 1) {
    add(1, sum1);
    add(2, sum2);
    add(3, sum3);
  }
}

LowRankRows one_row(const LowRankRows& rows, std::size_t r) {
  LowRankRows one = rows;
  one.left[0] = rows.left[r];
  one.out[0] = rows.out[r];
  one.n_rows = 1;
  return one;
}

}  // namespace

void add_low_rank(const LowRankRows& rows) {
  const std::size_t lanes = hn::Lanes(kLowRankDoubles);
  const std::size_t whole = rows.n - rows.n % lanes;
  if (rows.n_rows == kLowRankRows) {
    for (std::size_t c = 0; c < whole; c += lanes) add_vector<kLowRankRows>(rows, c);
  } else {
    for (std::size_t r = 0; r < rows.n_rows; ++r) {
      const LowRankRows one = one_row(rows, r);
      for (std::size_t c = 0; c < whole; c += lanes) add_vector<1>(one, c);
    }
  }
  scalar::add_columns(rows, whole);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(add_low_rank);
}  // namespace

void add_low_rank(const LowRankRows& rows) {
  HWY_DYNAMIC_DISPATCH(add_low_rank)(rows);
}

void scalar::add_low_rank(const LowRankRows& rows) {
  scalar::add_columns(rows, 0);
}

}  // namespace ingot::quantize
#endif
