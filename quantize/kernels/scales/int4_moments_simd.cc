// The exact search for scales of INT4 by moments.
//
// Between two BF16 numbers few codes change, about two in a group of 128. So the search walks down
// from the largest scale and keeps the loss as a parabola in the scale,
//
//   sum (x - s q)^T S (x - s q) = c - 2 s b + s^2 a,  a = q^T S q, b = q^T S x, c = x^T S x,
//
// S = U U^T. A code k of a magnitude m becomes k + 1 at the largest s with m >= (k + 1/2) s, where
// m = (k + 1/2) s counts for odd k only. That scale is found exactly: m has 24 bits and (k + 1/2) s
// at most 12, so that they are equal or differ by more than 2^-25 of them. So the quotient, in
// double and 2^-40 of it larger for odd k and smaller for even k, is on the right side of s.
// Where a code grows by 1, 2 (S q)_i + S_ii is added to a, (S x)_i to b, and row i of S to S q:
// sixteen sums side by side, and only they are computed by lanes. A walk over all 343 scales of
// a group of 128 costs a quarter of all their losses in FP32, by lanes.
//
// Rounding is no part of the choice. A loss that is kept so differs from one that is computed for
// itself by less than a margin: each is a sum of at most 16 n terms that are rounded, and
// |S_ij| <= sqrt(S_ii S_jj) bounds the sum of their magnitudes by 16 sum S_ii (|x_i| + s)^2. Scales
// whose losses are within the margin of the least are compared by losses of their own, as the
// header states; nearly always there is one.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/scales/int4_group.h"
#include "quantize/kernels/scales/int4_moments.h"
#include "quantize/kernels/scales/scale_errors.h"

// Parts of both twins; once, whatever the number of targets.
#ifndef INGOT_QUANTIZE_INT4_MOMENTS_
#define INGOT_QUANTIZE_INT4_MOMENTS_
namespace ingot::quantize {

/// The BF16 numbers that are tried for a group, by their words.
struct Int4ScaleWindow {
  std::uint32_t first = 0, least = 0, most = 0;
  [[nodiscard]] std::size_t count() const { return most - least + 1; }
};

inline float int4_scale_of(std::uint32_t word) {
  return formats::float_from_bf16(static_cast<std::uint16_t>(word));
}

/// Returns the word of the largest BF16 number that is not above a positive one.
inline std::uint32_t word_below(double value) {
  if (value < 0x1p-126) return static_cast<std::uint32_t>(value * 0x1p133);
  if (value >= 0x1p128) return formats::kBf16Infinity - 1U;
  constexpr unsigned kDropped = 52 - 7;  // bits of both mantissas
  constexpr std::uint64_t kBias = (1023U - 127U) << 7U;
  return static_cast<std::uint32_t>((std::bit_cast<std::uint64_t>(value) >> kDropped) - kBias);
}

inline Int4ScaleWindow int4_scale_window(float amax) {
  constexpr double kLeastOfMost = 3.5;  // where the code becomes 4
  const float first = stored_int4_scale(amax / 7);
  const double bound = double{kLeastHessianShare} * double{first};
  const std::uint32_t below = word_below(bound);
  Int4ScaleWindow window{.first = formats::bf16_from_float(first)};
  window.least = std::max(double{int4_scale_of(below)} < bound ? below + 1 : below, 1U);
  window.most = std::max(word_below(double{amax} / kLeastOfMost), window.first);
  return window;
}

/// Codes of a magnitude other than 0.
inline constexpr std::size_t kInt4Growths = 8;

/// The largest scale at which a code k of a magnitude becomes k + 1, as a share of the magnitude, a
/// little more or less where a tie counts or does not.
inline constexpr std::array<double, kInt4Growths> kInt4GrowthFactors = [] {
  std::array<double, kInt4Growths> factors{};
  for (std::size_t k = 0; k < kInt4Growths; ++k)
    factors[k] = (k % 2 == 0 ? 1 - 0x1p-40 : 1 + 0x1p-40) / (static_cast<double>(k) + 0.5);
  return factors;
}();

/// Sixteen numbers side by side.
struct alignas(64) Sixteen {
  std::array<double, kMomentBlock> numbers{};
};

/// Returns the row of S = U U^T of a column of a group.
inline Sixteen moments_row(std::span<const MomentBlock> moments, std::size_t column) {
  const float* factor = moments[column / kMomentBlock].factor.data();
  const std::size_t i = column % kMomentBlock;
  Sixteen row;
  for (std::size_t j = 0; j < kMomentBlock; ++j) {
    for (std::size_t k = std::max(i, j); k < kMomentBlock; ++k)
      row.numbers[j] += double{factor[i * kMomentBlock + k]} * double{factor[j * kMomentBlock + k]};
  }
  return row;
}

/// Computes the loss of a group under a scale, as the header of the kernel states it.
inline double int4_loss(std::span<const float> values, std::span<const MomentBlock> moments,
                        float scale) {
  double sum = 0;
  for (std::size_t c = 0; c < values.size(); c += kMomentBlock) {
    const std::array<float, kMomentBlock* kMomentBlock>& factor = moments[c / kMomentBlock].factor;
    std::array<double, kMomentBlock> rests;
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      const float value = values[c + i];
      const float code = Int4::value(Int4::nearest(value, value / scale));
      rests[i] = double{value} - double{scale} * double{code};
    }
    double loss = 0;
    for (std::size_t k = 0; k < kMomentBlock; ++k) {
      double z = 0;
      for (std::size_t i = 0; i <= k; ++i) z += rests[i] * double{factor[i * kMomentBlock + k]};
      loss += z * z;
    }
    sum += loss;
  }
  return sum;
}

}  // namespace ingot::quantize
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/scales/int4_moments_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<double, 8> kDoubles;

/// Adds sixteen numbers times a factor to others.
HWY_INLINE void add_times(Sixteen& to, const Sixteen& from, double factor) {
  const auto times = hn::Set(kDoubles, factor);
  for (std::size_t i = 0; i < kMomentBlock; i += hn::Lanes(kDoubles)) {
    double* at = to.numbers.data() + i;
    const auto more = hn::Mul(hn::Load(kDoubles, from.numbers.data() + i), times);
    hn::Store(hn::Add(hn::Load(kDoubles, at), more), kDoubles, at);
  }
}

/// The walk over the scales of groups at the same columns.
class Int4Walk {
 public:
  explicit Int4Walk(std::span<const MomentBlock> moments)
      : moments_(moments),
        rows_(moments.size() * kMomentBlock),
        of_values_(moments.size()),
        of_codes_(moments.size()),
        next_(rows_.size() * kInt4Growths) {
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i] = moments_row(moments, i);
  }

  float choose(std::span<const float> values) {
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::fabs(value));
    if (amax == 0) return 1.0F;
    window_ = int4_scale_window(amax);
    list_growths(values);
    const double margin = begin(values);
    walk(values);
    return int4_scale_of(least_of(values, margin));
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  [[nodiscard]] double diagonal(std::size_t column) const {
    return rows_[column].numbers[column % kMomentBlock];
  }

  /// Lists, for each scale, the codes that grow there.
  void list_growths(std::span<const float> values) {
    heads_.assign(window_.count(), kNone);
    const double least = int4_scale_of(window_.least);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double size = std::fabs(values[i]);
      const std::size_t most = values[i] < 0 ? kInt4Growths : kInt4Growths - 1;
      for (std::size_t k = 0; k < most; ++k) {
        const double scale = size * kInt4GrowthFactors[k];
        if (scale < least) break;
        const std::size_t at = std::min(word_below(scale), window_.most) - window_.least;
        const auto growth = static_cast<std::uint32_t>(i * kInt4Growths + k);
        next_[growth] = heads_[at];
        heads_[at] = growth;
      }
    }
  }

  /// Sets S x and c, and codes of zero. Returns the margin.
  double begin(std::span<const float> values) {
    std::ranges::fill(of_values_, Sixteen());
    std::ranges::fill(of_codes_, Sixteen());
    constant_ = 0;
    double sizes = 0;
    const double most = int4_scale_of(window_.most);
    for (std::size_t i = 0; i < values.size(); ++i)
      add_times(of_values_[i / kMomentBlock], rows_[i], values[i]);
    for (std::size_t i = 0; i < values.size(); ++i) {
      constant_ += double{values[i]} * number_of(of_values_, i);
      const double size = double{std::fabs(values[i])} + most;
      sizes += diagonal(i) * (size * size);
    }
    return 0x1p-40 * static_cast<double>(values.size()) * sizes;
  }

  /// Computes the losses of all scales, from the largest down.
  void walk(std::span<const float> values) {
    losses_.resize(window_.count());
    double squares = 0, products = 0;  // a and b
    for (std::size_t at = losses_.size(); at-- > 0;) {
      for (std::uint32_t growth = heads_[at]; growth != kNone; growth = next_[growth]) {
        const std::size_t i = growth / kInt4Growths;
        const double sign = std::copysign(1.0, values[i]);
        squares += 2 * sign * number_of(of_codes_, i) + diagonal(i);
        products += sign * number_of(of_values_, i);
        add_times(of_codes_[i / kMomentBlock], rows_[i], sign);
      }
      const double scale = int4_scale_of(window_.least + static_cast<std::uint32_t>(at));
      losses_[at] = (squares * scale - 2 * products) * scale + constant_;
    }
  }

  /// Returns the word of the scale that loses least.
  [[nodiscard]] std::uint32_t least_of(std::span<const float> values, double margin) const {
    const auto best = std::ranges::min_element(losses_);
    const double limit = *best + margin;
    if (std::ranges::count_if(losses_, [&](double loss) { return loss <= limit; }) == 1)
      return window_.least + static_cast<std::uint32_t>(best - losses_.begin());
    double least = INFINITY;
    std::uint32_t chosen = window_.first;
    const auto look = [&](std::uint32_t word) {
      if (!(losses_[word - window_.least] <= limit)) return;
      const double loss = int4_loss(values, moments_, int4_scale_of(word));
      if (!(loss < least)) return;
      least = loss;
      chosen = word;
    };
    look(window_.first);
    for (std::uint32_t word = window_.least; word <= window_.most; ++word) look(word);
    return chosen;
  }

  static double number_of(const std::vector<Sixteen>& blocks, std::size_t column) {
    return blocks[column / kMomentBlock].numbers[column % kMomentBlock];
  }

  std::span<const MomentBlock> moments_;
  std::vector<Sixteen> rows_;       ///< rows of S, one per column of the group
  std::vector<Sixteen> of_values_;  ///< S x of each block
  std::vector<Sixteen> of_codes_;   ///< S q of each block
  std::vector<std::uint32_t> heads_, next_;
  std::vector<double> losses_;
  Int4ScaleWindow window_;
  double constant_ = 0;
};

}  // namespace

void choose_int4_scales_by_moments(const Int4MomentGroups& in, std::span<float> scales) {
  const std::size_t across = in.values.cols / in.group_cols, n = in.group_cols / kMomentBlock;
  for (std::size_t g = 0; g < across; ++g) {
    Int4Walk walk(in.moments.subspan(g * n, n));
    for (std::size_t r = 0; r < in.values.rows; ++r)
      scales[r * across + g] = walk.choose({in.values.row(r) + g * in.group_cols, in.group_cols});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(choose_int4_scales_by_moments);

/// False for an empty run; moments and scales of any other must cover it.
bool has_groups(const Int4MomentGroups& in, std::span<const float> scales) {
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  INGOT_CHECK(in.group_cols > 0 && in.group_cols % kMomentBlock == 0);
  INGOT_CHECK(in.values.cols % in.group_cols == 0);
  INGOT_CHECK(in.moments.size() == in.values.cols / kMomentBlock);
  INGOT_CHECK(scales.size() == in.values.rows * (in.values.cols / in.group_cols));
  return true;
}

}  // namespace

void scalar::choose_int4_scales_by_moments(const Int4MomentGroups& in, std::span<float> scales) {
  if (!has_groups(in, scales)) return;
  for_each_group_piece(in.values, 1, in.group_cols, scales.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         const std::span values(in.values.row(r) + begin, end - begin);
                         const auto moments =
                             in.moments.subspan(begin / kMomentBlock, values.size() / kMomentBlock);
                         float amax = 0;
                         for (const float value : values) amax = std::max(amax, std::fabs(value));
                         scales[group] = 1.0F;
                         if (amax == 0) return;
                         const Int4ScaleWindow window = int4_scale_window(amax);
                         std::uint32_t best = window.first;
                         double least = int4_loss(values, moments, int4_scale_of(best));
                         for (std::uint32_t word = window.least; word <= window.most; ++word) {
                           const double loss = int4_loss(values, moments, int4_scale_of(word));
                           if (!(loss < least)) continue;
                           least = loss;
                           best = word;
                         }
                         scales[group] = int4_scale_of(best);
                       });
}

void choose_int4_scales_by_moments(const Int4MomentGroups& in, std::span<float> scales) {
  if (has_groups(in, scales)) HWY_DYNAMIC_DISPATCH(choose_int4_scales_by_moments)(in, scales);
}

}  // namespace ingot::quantize
#endif
