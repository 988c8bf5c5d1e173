// The error of groups under scales that are tried.
//
// The nearest code's value is y + u - u, with u so large that the last place of the sum is the step
// of codes there (code_encode_simd.cc). The mantissa of u is 1.5, which leaves room on both sides,
// so that signs need no care.
//
// Errors by moments are computed a row per lane, so that the numbers of the factor are the same in
// all lanes and no sum is across lanes. A search of E2M1 scales walks away from the first code, up
// and then down, each lane around its own. An error is a sum of squares over columns, of which the
// first need only the first columns: most candidates are left after four or eight of them. The walk
// down ends where a bound by the floor of the moments (block_moments.h) is above the least error
// for all that follow, since more and more is cut off from values above the largest code.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/scales/scale_errors.h"

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
#define HWY_TARGET_INCLUDE "quantize/kernels/scales/scale_errors_simd.cc"
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
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
using Floats = hn::Vec<decltype(kFloats)>;
using Ints = hn::Vec<decltype(kInts)>;
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

struct Int4 {
  static HWY_INLINE Floats nearest(Floats y, Floats zero) {
    const Floats integers = hn::Set(kFloats, 0x1.8p23F);
    const Floats most = hn::Sub(hn::Set(kFloats, 15.0F), zero);
    const Floats within = hn::Max(hn::Min(y, most), hn::Neg(zero));
    return hn::Sub(hn::Add(within, integers), integers);
  }
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

template <typename Code>
HWY_INLINE Floats nearest_code(Floats y, Floats zero) {
  if constexpr (std::is_same_v<Code, Int4>) {
    return Code::nearest(y, zero);
  } else {
    return Code::nearest(y);
  }
}

/// Sixteen columns of kVectorLanes rows, a row per lane.
struct alignas(64) Strip {
  std::array<float, kMomentBlock * kVectorLanes> numbers;

  [[nodiscard]] HWY_INLINE Floats column(std::size_t i) const {
    return hn::Load(kFloats, numbers.data() + i * kVectorLanes);
  }
  HWY_INLINE void set_column(std::size_t i, Floats column) {
    hn::Store(column, kFloats, numbers.data() + i * kVectorLanes);
  }
  /// Rows from `row` on; zeros behind the last.
  HWY_INLINE void read(formats::MatrixView<const float> values, std::size_t row, std::size_t col) {
    const std::size_t n_rows = std::min(kVectorLanes, values.rows - row);
    if (n_rows < kVectorLanes) numbers.fill(0);
    for (std::size_t lane = 0; lane < n_rows; ++lane) {
      const float* from = values.row(row + lane) + col;
      for (std::size_t i = 0; i < kMomentBlock; ++i) numbers[i * kVectorLanes + lane] = from[i];
    }
  }
};

/// Adds the squares of four columns of U^T times the rests of a block to its error, from `k` on.
/// Zeros below the diagonal change no sum.
HWY_INLINE Floats with_four_columns(Floats error, const Strip& rests, const MomentBlock& block,
                                    std::size_t k) {
  Floats z0 = hn::Zero(kFloats), z1 = z0, z2 = z0, z3 = z0;
  const float* row = block.factor.data() + k;
  for (std::size_t i = 0; i < k + 4; ++i, row += kMomentBlock) {
    const Floats rest = rests.column(i);
    z0 = hn::Add(z0, hn::Mul(rest, hn::Set(kFloats, row[0])));
    z1 = hn::Add(z1, hn::Mul(rest, hn::Set(kFloats, row[1])));
    z2 = hn::Add(z2, hn::Mul(rest, hn::Set(kFloats, row[2])));
    z3 = hn::Add(z3, hn::Mul(rest, hn::Set(kFloats, row[3])));
  }
  error = hn::Add(error, hn::Mul(z0, z0));
  error = hn::Add(error, hn::Mul(z1, z1));
  error = hn::Add(error, hn::Mul(z2, z2));
  return hn::Add(error, hn::Mul(z3, z3));
}

/// The error of a block by its moments, from the rests of its columns.
HWY_INLINE Floats moment_error(const Strip& rests, const MomentBlock& block) {
  Floats error = hn::Zero(kFloats);
  for (std::size_t k = 0; k < kMomentBlock; k += 4)
    error = with_four_columns(error, rests, block, k);
  return error;
}

template <typename Code>
HWY_INLINE void hessian_errors_of(const ScaledGroups& in, std::span<const MomentBlock> moments,
                                  std::span<float> errors) {
  const formats::MatrixView<const float> values = in.values;
  const auto block_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, values.cols));
  const auto block_rows =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_rows, values.rows));
  const std::size_t across = (values.cols + block_cols - 1) / block_cols;
  const std::size_t n_groups = across * ((values.rows + block_rows - 1) / block_rows);
  const std::size_t n_scales = in.scales.size() / n_groups;
  std::fill_n(errors.begin(), n_scales * n_groups, 0.0F);
  // Scales, zero points and errors of the rows of a strip.
  std::vector<float> scales(n_scales * kVectorLanes), sums(n_scales * kVectorLanes);
  std::vector<float> zeros(n_scales * kVectorLanes, kInt4Zero);
  const std::size_t unit = block_rows == 1 ? values.rows : block_rows;
  for (std::size_t first = 0; first < values.rows; first += unit) {
    const std::size_t end = std::min(values.rows, first + unit);
    for (std::size_t r = first; r < end; r += kVectorLanes) {
      const std::size_t n_rows = std::min(kVectorLanes, end - r);
      for (std::size_t g = 0; g < across; ++g) {
        const auto group = [&](std::size_t lane) { return (r + lane) / block_rows * across + g; };
        std::ranges::fill(scales, 1.0F);
        std::ranges::fill(sums, 0.0F);
        for (std::size_t s = 0; s < n_scales; ++s) {
          for (std::size_t lane = 0; lane < n_rows; ++lane) {
            scales[s * kVectorLanes + lane] = in.scales[s * n_groups + group(lane)];
            zeros[s * kVectorLanes + lane] = in.zero(s * n_groups + group(lane));
          }
        }
        const std::size_t last = std::min(values.cols, (g + 1) * block_cols);
        for (std::size_t c = g * block_cols; c < last; c += kMomentBlock) {
          Strip x, rests;
          x.read({.data = values.data, .rows = end, .cols = values.cols, .stride = values.stride},
                 r, c);
          for (std::size_t s = 0; s < n_scales; ++s) {
            const Floats scale = hn::LoadU(kFloats, scales.data() + s * kVectorLanes);
            const Floats zero = hn::LoadU(kFloats, zeros.data() + s * kVectorLanes);
            for (std::size_t i = 0; i < kMomentBlock; ++i) {
              const Floats y = hn::Div(x.column(i), scale);
              rests.set_column(i, hn::Sub(y, nearest_code<Code>(y, zero)));
            }
            float* sum = sums.data() + s * kVectorLanes;
            hn::StoreU(
                hn::Add(hn::LoadU(kFloats, sum), moment_error(rests, moments[c / kMomentBlock])),
                kFloats, sum);
          }
        }
        for (std::size_t s = 0; s < n_scales; ++s) {
          for (std::size_t lane = 0; lane < n_rows; ++lane)
            errors[s * n_groups + group(lane)] += sums[s * kVectorLanes + lane];
        }
      }
    }
  }
}

/// The groups of kVectorLanes rows at the same columns, a row per lane, and their best codes.
template <std::size_t kBlocks>
class HessianWalk {
 public:
  HWY_INLINE HessianWalk(const HessianGroups& in, std::size_t row, std::size_t col,
                         const MomentBlock* blocks, const std::int32_t* first_codes)
      : in_(in), blocks_(blocks), first_(hn::LoadU(kInts, first_codes)) {
    best_ = first_;
    first_scale_ = hn::GatherIndex(kFloats, in.scales.data(), first_);
    Floats largest = hn::Zero(kFloats);
    for (std::size_t b = 0; b < kBlocks; ++b) {
      x_[b].read(in.values, row, col + b * kMomentBlock);
      for (std::size_t i = 0; i < kMomentBlock; ++i) {
        const Floats size = hn::Abs(hn::Div(x_[b].column(i), first_scale_));
        sizes_[b].set_column(i, size);
        largest = hn::Max(largest, size);
      }
    }
    most_ = hn::Set(kFloats, INFINITY);
    error_ = most_;
    settled_ = hn::Lt(error_, error_);
    consider(first_, false);
    // Nothing is less, and the first wins ties.
    settled_ = hn::Eq(error_, hn::Zero(kFloats));
    most_ = hn::Div(largest, hn::Set(kFloats, in.least_reach));
  }

  /// Tries the others.
  HWY_INLINE void walk() {
    if (hn::AllTrue(kFloats, settled_)) return;
    walk_to(hn::Set(kInts, static_cast<std::int32_t>(in_.scales.size() - 1)), 1);
    walk_to(hn::Zero(kInts), -1);
  }
  [[nodiscard]] HWY_INLINE Ints best() const { return best_; }

 private:
  /// A bound of all that follows costs about half of a code that is tried and spared.
  static constexpr std::size_t kSparedPerBound = 3;

  /// Tries the codes behind the first, up or down, until all lanes are at their last one or lose
  /// by all that follow.
  HWY_INLINE void walk_to(Ints last, std::int32_t step) {
    std::size_t n_spared = 0;
    for (Ints code = first_; !hn::AllTrue(kInts, hn::Eq(code, last));) {
      const Ints next = hn::Add(code, hn::Set(kInts, step));
      code = step > 0 ? hn::Min(next, last) : hn::Max(next, last);
      if (consider(code, step < 0)) continue;
      auto ends = hn::Or(is_out_, hn::RebindMask(kFloats, hn::Eq(code, last)));
      if (step < 0 && ++n_spared % kSparedPerBound == 0) {
        const Floats limit = hn::Max(error_, hn::Set(kFloats, 0x1p-80F));
        ends = hn::Or(ends, hn::Gt(bound_below(), limit));
      }
      if (hn::AllTrue(kFloats, ends)) return;
    }
  }

  /// Tries a code for each lane. Returns false if the first columns of all are worse than the best,
  /// which spares the others.
  HWY_INLINE bool consider(Ints code, bool is_below) {
    const Floats scale = hn::GatherIndex(kFloats, in_.scales.data(), code);
    ratio_ = hn::Div(scale, first_scale_);
    is_out_ = hn::Or(settled_, hn::Or(hn::Lt(ratio_, hn::Set(kFloats, kLeastHessianShare)),
                                      hn::Gt(ratio_, most_)));
    if (hn::AllTrue(kFloats, is_out_)) return false;
    const Floats square = hn::Mul(ratio_, ratio_);
    Floats sum = hn::Zero(kFloats), other = sum;
    for (std::size_t b = 0; b < kBlocks; ++b) {
      Strip rests;
      Floats error = hn::Zero(kFloats);
      for (std::size_t k = 0; k < kMomentBlock; k += 4) {
        for (std::size_t i = k; i < k + 4; ++i) {
          const Floats y = hn::Div(x_[b].column(i), scale);
          rests.set_column(i, hn::Sub(y, E2m1::nearest(y)));
        }
        error = with_four_columns(error, rests, blocks_[b], k);
        // It only grows, also as rounded.
        other = hn::Mul(hn::Add(sum, error), square);
        if (hn::AllTrue(kFloats, hn::Or(is_out_, hn::Gt(other, error_)))) return false;
      }
      sum = hn::Add(sum, error);
    }
    const auto wins_tie =
        hn::And(hn::Eq(other, error_), hn::RebindMask(kFloats, hn::Ne(best_, first_)));
    const auto less = hn::Lt(other, error_);
    const auto wins = hn::AndNot(is_out_, is_below ? hn::Or(less, wins_tie) : less);
    error_ = hn::IfThenElse(wins, other, error_);
    best_ = hn::IfThenElse(hn::RebindMask(kInts, wins), code, best_);
    return true;
  }

  /// A bound of the errors under all scales up to the one at hand: the parts of values that it cuts
  /// off.
  [[nodiscard]] HWY_INLINE Floats bound_below() const {
    const Floats most = hn::Mul(hn::Set(kFloats, 6.0F), ratio_);
    Floats bound = hn::Zero(kFloats);
    for (std::size_t b = 0; b < kBlocks; ++b) {
      for (std::size_t i = 0; i < kMomentBlock; ++i) {
        const Floats part = hn::Max(hn::Sub(sizes_[b].column(i), most), hn::Zero(kFloats));
        bound = hn::Add(bound, hn::Mul(hn::Mul(part, part), hn::Set(kFloats, blocks_[b].floor[i])));
      }
    }
    return bound;
  }

  const HessianGroups& in_;
  const MomentBlock* blocks_;
  Strip x_[kBlocks];
  Strip sizes_[kBlocks];  ///< magnitudes in units of the first scale
  Ints first_, best_;
  Floats first_scale_, error_;
  Floats ratio_;  ///< ratio of the scale at hand to the first
  Floats most_;   ///< the largest ratio that is tried
  hn::Mask<decltype(kFloats)> settled_, is_out_;
};

template <std::size_t kBlocks>
HWY_INLINE void choose_codes(const HessianGroups& in, std::span<std::uint8_t> codes) {
  const std::size_t across = in.values.cols / in.group_cols;
  for (std::size_t g = 0; g < across; ++g) {
    for (std::size_t r = 0; r < in.values.rows; r += kVectorLanes) {
      const std::size_t n_rows = std::min(kVectorLanes, in.values.rows - r);
      std::array<std::int32_t, kVectorLanes> some;
      some.fill(codes[r * across + g]);
      for (std::size_t lane = 0; lane < n_rows; ++lane) some[lane] = codes[(r + lane) * across + g];
      HessianWalk<kBlocks> groups(in, r, g * in.group_cols, in.moments.data() + g * kBlocks,
                                  some.data());
      groups.walk();
      hn::StoreU(groups.best(), kInts, some.data());
      for (std::size_t lane = 0; lane < n_rows; ++lane)
        codes[(r + lane) * across + g] = static_cast<std::uint8_t>(some[lane]);
    }
  }
}

}  // namespace

void hessian_errors(formats::CodeKind kind, const ScaledGroups& in,
                    std::span<const MomentBlock> moments, std::span<float> errors) {
  if (kind == formats::CodeKind::kE4m3) hessian_errors_of<E4m3>(in, moments, errors);
  if (kind == formats::CodeKind::kInt8) hessian_errors_of<Int8>(in, moments, errors);
  if (kind == formats::CodeKind::kInt4) hessian_errors_of<Int4>(in, moments, errors);
}

void choose_hessian_codes(const HessianGroups& in, std::span<std::uint8_t> codes) {
  in.group_cols == kMomentBlock ? choose_codes<1>(in, codes) : choose_codes<2>(in, codes);
}

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
HWY_EXPORT(hessian_errors);
HWY_EXPORT(choose_hessian_codes);

/// Groups of a run.
std::size_t groups_of(const ScaledGroups& in) {
  INGOT_CHECK(in.block_rows > 0 && in.block_cols > 0);
  return static_cast<std::size_t>(ceil_div(in.values.cols, in.block_cols) *
                                  ceil_div(in.values.rows, in.block_rows));
}

/// False for an empty run; scales and errors of any other must cover it.
bool has_groups(const ScaledGroups& in, std::span<const float> errors) {
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  const std::size_t n = groups_of(in);
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

/// The error of one row of a group by its moments, in units of the square of the scale.
template <typename Code>
float row_error(std::span<const float> values, float scale, std::span<const MomentBlock> moments,
                const Code& code, std::uint8_t zero = kInt4Zero) {
  float sum = 0;
  for (std::size_t c = 0; c < values.size(); c += kMomentBlock) {
    const MomentBlock& block = moments[c / kMomentBlock];
    std::array<float, kMomentBlock> rests;
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      const float value = values[c + i], y = value / scale;
      if constexpr (Code::kHasZero) {
        rests[i] = y - code.value(code.nearest(value, y, zero), zero);
      } else {
        rests[i] = y - code.value(code.nearest(value, y));
      }
    }
    float error = 0;
    for (std::size_t k = 0; k < kMomentBlock; ++k) {
      float z = 0;
      for (std::size_t i = 0; i <= k; ++i) z += rests[i] * block.factor[i * kMomentBlock + k];
      error += z * z;
    }
    sum += error;
  }
  return sum;
}

/// False for an empty run; scales, errors and moments of any other must cover it.
bool has_moments(const ScaledGroups& in, std::span<const MomentBlock> moments,
                 std::span<const float> errors) {
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  INGOT_CHECK(in.block_cols % kMomentBlock == 0 || in.block_cols >= in.values.cols);
  INGOT_CHECK(in.values.cols % kMomentBlock == 0);
  INGOT_CHECK(moments.size() == in.values.cols / kMomentBlock);
  INGOT_CHECK(in.scales.size() % groups_of(in) == 0 && errors.size() >= in.scales.size());
  INGOT_CHECK(in.zeros.empty() || in.zeros.size() == in.scales.size());
  return true;
}

bool has_moments(const HessianGroups& in, std::span<const std::uint8_t> codes) {
  if (in.values.rows == 0 || in.values.cols == 0) return false;
  INGOT_CHECK(in.group_cols == kMomentBlock || in.group_cols == 2 * kMomentBlock);
  INGOT_CHECK(in.values.cols % in.group_cols == 0);
  INGOT_CHECK(in.moments.size() == in.values.cols / kMomentBlock);
  INGOT_CHECK(codes.size() == in.values.rows * (in.values.cols / in.group_cols));
  return true;
}

/// The code of one group's scale.
std::uint8_t hessian_code(const HessianGroups& in, std::span<const float> values,
                          std::span<const MomentBlock> moments, std::uint8_t first) {
  const auto error = [&](std::size_t code) {
    const float ratio = in.scales[code] / in.scales[first];
    return row_error(values, in.scales[code], moments, E2m1()) * (ratio * ratio);
  };
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  const float most = amax / in.scales[first] / in.least_reach;
  std::size_t best = first;
  float least = error(first);
  for (std::size_t code = 0; code < in.scales.size(); ++code) {
    const float ratio = in.scales[code] / in.scales[first];
    if (ratio < kLeastHessianShare || ratio > most) continue;
    const float other = error(code);
    if (!(other < least)) continue;
    least = other;
    best = code;
  }
  return static_cast<std::uint8_t>(best);
}

}  // namespace

void scalar::hessian_errors(formats::CodeKind kind, const ScaledGroups& in,
                            std::span<const MomentBlock> moments, std::span<float> errors) {
  if (!has_moments(in, moments, errors)) return;
  const std::size_t n_groups = groups_of(in);
  std::fill_n(errors.begin(), in.scales.size(), 0.0F);
  for (std::size_t first = 0; first < in.scales.size(); first += n_groups) {
    with_code(kind, [&](auto code) {
      for_each_group_piece(
          in.values, in.block_rows, in.block_cols, n_groups,
          [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
            errors[first + group] +=
                row_error({in.values.row(r) + begin, end - begin}, in.scales[first + group],
                          moments.subspan(begin / kMomentBlock), code, in.zero(first + group));
          });
    });
  }
}

void scalar::choose_hessian_codes(const HessianGroups& in, std::span<std::uint8_t> codes) {
  if (!has_moments(in, codes)) return;
  for_each_group_piece(in.values, 1, in.group_cols, codes.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         codes[group] =
                             hessian_code(in, {in.values.row(r) + begin, end - begin},
                                          in.moments.subspan(begin / kMomentBlock), codes[group]);
                       });
}

void hessian_errors(formats::CodeKind kind, const ScaledGroups& in,
                    std::span<const MomentBlock> moments, std::span<float> errors) {
  if (has_moments(in, moments, errors))
    HWY_DYNAMIC_DISPATCH(hessian_errors)(kind, in, moments, errors);
}

void choose_hessian_codes(const HessianGroups& in, std::span<std::uint8_t> codes) {
  if (has_moments(in, codes)) HWY_DYNAMIC_DISPATCH(choose_hessian_codes)(in, codes);
}

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
