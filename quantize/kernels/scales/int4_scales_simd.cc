// Finds the scale of a group of INT4 codes that leaves the least error, and its zero point.
//
// Most candidates need no exact error. A sieve bounds the errors of all from below, a candidate per
// lane: values that no candidate cuts off, nearly all, in 16-bit integers, y = |x| / s with twelve
// bits of fraction and its distance from the nearest integer; the few large ones in FP32. The
// candidate that looks best is tried exactly, and then those whose bound is not above its error.
//
// With zero points, a value that is not cut off is as far from its code as from an integer times
// the scale, whatever the zero point. So one sum per scale is a bound for all of its zero points,
// and the least and the largest value tell more: how far they lie beyond the codes.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scales/int4_group.h"
#include "quantize/kernels/scales/int4_scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/scales/int4_scales_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kInt4Lanes> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kVectorLanes = hn::MaxLanes(kFloats);
constexpr std::size_t kParts = kInt4Lanes / kVectorLanes;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float folded_lanes(decltype(kFloats) /*tag*/, Floats sum) {
  return hn::GetLane(sum);
}
#else
/// The sum of all lanes, folded by halves.
template <typename Tag>
HWY_INLINE float folded_lanes(Tag tag, hn::Vec<Tag> sums) {
  if constexpr (hn::MaxLanes(tag) > 4) {
    constexpr hn::Half<Tag> kHalf;
    return folded_lanes(kHalf, hn::Add(hn::LowerHalf(kHalf, sums), hn::UpperHalf(kHalf, sums)));
  } else {
    alignas(16) std::array<float, 4> lanes;
    hn::Store(sums, tag, lanes.data());
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
}
#endif

/// Sixteen sums.
struct Sums {
  HWY_INLINE Sums() {
    for (std::size_t p = 0; p < kParts; ++p) part[p] = hn::Zero(kFloats);
  }
  [[nodiscard]] HWY_INLINE float fold() const {
    Sums sums = *this;
    for (std::size_t half = kParts / 2; half > 0; half /= 2) {
      for (std::size_t p = 0; p < half; ++p)
        sums.part[p] = hn::Add(sums.part[p], sums.part[p + half]);
    }
    return folded_lanes(kFloats, sums.part[0]);
  }
  Floats part[kParts];
};

/// Calls visit(part, x, q, weigh) for vectors of the group, whose n is a multiple of kInt4Lanes.
template <typename Visit>
HWY_INLINE void for_each_vector(const Int4Group& group, const Int4Grid& grid, const Visit& visit) {
  const Floats inverse = hn::Set(kFloats, 1 / grid.scale);
  const Floats integers = hn::Set(kFloats, kIntegers);
  const Floats least = hn::Set(kFloats, Int4::value(0, grid.zero));
  const Floats most = hn::Set(kFloats, Int4::value(kLastInt4Code, grid.zero));
  for (std::size_t i = 0; i < group.n; i += kInt4Lanes) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t at = i + p * kVectorLanes;
      const Floats x = hn::LoadU(kFloats, group.values + at);
      const Floats y = hn::Max(hn::Min(hn::Mul(x, inverse), most), least);
      const Floats q = hn::Sub(hn::Add(y, integers), integers);
      visit(p, x, q, [&](Floats term) HWY_ATTR {
        return group.weights == nullptr ? term
                                        : hn::Mul(term, hn::LoadU(kFloats, group.weights + at));
      });
    }
  }
}

/// The error of a grid with its scale in units.
HWY_INLINE float error_of(const Int4Group& group, const Int4Grid& grid) {
  Sums sums;
  const Floats factor = hn::Set(kFloats, grid.scale);
  for_each_vector(group, grid, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
    // q x scale has at most twelve significant bits: fusing changes nothing.
    const Floats rest = hn::NegMulAdd(q, factor, x);
    sums.part[p] = hn::Add(sums.part[p], weigh(hn::Mul(rest, rest)));
  });
  return sums.fold();
}

/// The scale that fits the codes of a grid, with its scale in units, best, or 0.
HWY_INLINE float fitted(const Int4Group& group, const Int4Grid& grid) {
  Sums products, squares;
  for_each_vector(group, grid, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
    products.part[p] = hn::Add(products.part[p], weigh(hn::Mul(x, q)));
    squares.part[p] = hn::Add(squares.part[p], weigh(hn::Mul(q, q)));
  });
  return fitted_int4_scale(products.fold(), squares.fold(), group.unit);
}

/// A bit for each lane of which this is true.
HWY_INLINE std::uint64_t bits_of(hn::Mask<decltype(kFloats)> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(kFloats, mask, bytes);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// Positive scales in the group's units, in the order in which they are tried, and lower bounds of
/// errors.
struct Candidates {
  static constexpr std::size_t kRoom = (kInt4Steps + kInt4Lanes - 1) / kInt4Lanes * kInt4Lanes;

  /// The reach of the values, in units of `reach_unit`, divided.
  HWY_INLINE Candidates(float reach, float reach_unit, const Int4Divisors& by, float own_unit) {
    const Floats whole = hn::Set(kFloats, reach), before = hn::Set(kFloats, reach_unit);
    const Floats unit = hn::Set(kFloats, own_unit);
    const Floats smallest = hn::Set(kFloats, kSmallestInt4Scale);
    const Floats largest = hn::Set(kFloats, kLargestInt4Scale);
    const auto word = [](std::uint32_t bits) HWY_ATTR { return hn::Set(kWords, bits); };
    for (std::size_t i = 0; i < kRoom; i += kVectorLanes) {
      // Lanes behind the last candidate repeat it.
      const Floats step = hn::Min(hn::Iota(kFloats, static_cast<float>(i)),
                                  hn::Set(kFloats, static_cast<float>(kInt4Steps - 1)));
      const Floats part =
          hn::Add(hn::Set(kFloats, by.first), hn::Mul(step, hn::Set(kFloats, by.step)));
      const auto bits = hn::BitCast(kWords, hn::Div(hn::Div(whole, part), before));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), word(1));
      const auto rounded = hn::And(hn::Add(hn::Add(bits, word(0x7FFF)), odd), word(0xFFFF0000));
      const Floats stored = hn::Min(hn::Max(hn::BitCast(kFloats, rounded), smallest), largest);
      hn::StoreU(hn::Mul(stored, unit), kFloats, scales.data() + i);
    }
  }

  /// A bit for each candidate of this sign whose bound is at most `error`.
  [[nodiscard]] HWY_INLINE std::uint64_t at_most(float error, bool negative) const {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < kRoom; i += kVectorLanes) {
      const Floats bound = hn::LoadU(kFloats, bounds[negative ? 1 : 0].data() + i);
      found |= bits_of(hn::Le(bound, hn::Set(kFloats, error))) << i;
    }
    return found & ((std::uint64_t{1} << kInt4Steps) - 1);
  }

  /// The least of the scales.
  [[nodiscard]] HWY_INLINE float least() const { return scales[kInt4Steps - 1]; }

  [[nodiscard]] HWY_INLINE float least_bound(bool negative) const {
    const float* own = bounds[negative ? 1 : 0].data();
    Floats least = hn::LoadU(kFloats, own);
    for (std::size_t i = kVectorLanes; i < kRoom; i += kVectorLanes)
      least = hn::Min(least, hn::LoadU(kFloats, own + i));
    return hn::GetLane(hn::MinOfLanes(kFloats, least));
  }

  std::array<float, kRoom> scales;
  std::array<float, kRoom> bounds[2] = {};  ///< bounds of the scales, and of their negatives
};

/// Vectors of candidates that are tried together.
constexpr std::size_t kSet = std::min<std::size_t>(6, Candidates::kRoom / kVectorLanes);
constexpr std::size_t kSetLanes = kSet * kVectorLanes;
static_assert(Candidates::kRoom % kSetLanes == 0);

#if HWY_TARGET != HWY_SCALAR
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
constexpr hn::RepartitionToNarrow<decltype(kInts)> kShorts;
using Ints = hn::Vec<decltype(kInts)>;
using Shorts = hn::Vec<decltype(kShorts)>;

/// Magnitudes as integers up to kTop.
constexpr float kTop = 32767;
/// Distances in fractions of kOne, of magnitudes below kMost steps.
template <int kBits>
struct Fractions {
  static constexpr int kWholeBits = 16 - kBits;
  static constexpr float kOne = 1 << kBits;
  static constexpr float kMost = 32766 / kOne;
  /// Three roundings move a distance by less than 1.5 in fractions of kOne: magnitude and factor by
  /// 0.51 of their last places, the product by 0.5. Those of FP32 are far less.
  static HWY_INLINE Floats radius(std::size_t n) {
    return hn::Set(kFloats, 1.55F / kOne * std::sqrt(static_cast<float>(n)));
  }
};
using Fine = Fractions<12>;
using Coarse = Fractions<10>;
static_assert(Fine::kMost > 7.5F && Coarse::kMost > kOfRange.at(kInt4Steps - 1));
/// So many squares of at most half of 2^12 fit 31 bits.
constexpr std::size_t kValuesAtOnce = 256;
/// Longer sums of FP32 lose too much.
constexpr std::size_t kLongest = std::size_t{1} << 16;

/// Two values next to each other, for all lanes.
HWY_INLINE Shorts two_of(const std::int16_t* values) {
  std::int32_t both = 0;
  std::memcpy(&both, values, sizeof both);
  return hn::BitCast(kShorts, hn::Set(kInts, both));
}

/// sum + the squares of both halves of each lane.
HWY_INLINE Ints add_squares(Ints sum, Shorts values) {
#if HWY_ARCH_X86
  Ints unused = hn::Zero(kInts);
  return hn::ReorderWidenMulAccumulate(kInts, values, values, sum, unused);
#else
  const Ints both = hn::BitCast(kInts, values);
  const Ints high = hn::ShiftRight<16>(both);
  const Ints low = hn::ShiftRight<16>(hn::ShiftLeft<16>(both));
  return hn::Add(sum, hn::Add(hn::Mul(low, low), hn::Mul(high, high)));
#endif
}

/// Stores the magnitudes up to `limit` times kTop / limit, zeros in place of others, and those
/// others, of which it returns the number.
HWY_INLINE std::size_t split(const Int4Group& group, float limit) {
  constexpr hn::Rebind<std::int16_t, decltype(kFloats)> kHalf;
  const Floats by = hn::Set(kFloats, kTop / limit), most = hn::Set(kFloats, limit);
  std::size_t n_large = 0;
  for (std::size_t first = 0; first < group.n; first += 64) {
    std::uint64_t large = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(64, group.n - first); i += kVectorLanes) {
      const Floats x = hn::LoadU(kFloats, group.values + first + i);
      const auto is_large = hn::Gt(hn::Abs(x), most);
      const Floats magnitude = hn::IfThenZeroElse(is_large, hn::Mul(hn::Abs(x), by));
      hn::StoreU(hn::DemoteTo(kHalf, hn::NearestInt(magnitude)), kHalf,
                 group.magnitudes + first + i);
      large |= bits_of(is_large) << i;
    }
    for (; large != 0; large &= large - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(large));
      group.large[n_large++] = group.values[first + i];
    }
  }
  return n_large;
}

/// Adds the squares of the distances of small values from integers, in units of the scale, under
/// the scales.
template <class Fraction>
HWY_INLINE void add_small(const Int4Group& group, const Floats (&inverses)[kSet], float limit,
                          Floats (&sums)[kSet]) {
  Shorts factors[kSet];
  for (std::size_t p = 0; p < kSet; ++p) {
    // The rounding multiplication returns the upper half of twice a product: y in units of 1/kOne.
    const Floats by = hn::Set(kFloats, Fraction::kOne * 0x1p15F * limit / kTop);
    const Ints factor = hn::NearestInt(hn::Mul(inverses[p], by));
    factors[p] = hn::BitCast(kShorts, hn::Or(factor, hn::ShiftLeft<16>(factor)));
  }
  for (std::size_t first = 0; first < group.n; first += kValuesAtOnce) {
    Ints squares[kSet];
    for (std::size_t p = 0; p < kSet; ++p) squares[p] = hn::Zero(kInts);
    const std::size_t end = std::min(group.n, first + kValuesAtOnce);
    for (std::size_t i = first; i < end; i += 2) {
      const Shorts magnitude = two_of(group.magnitudes + i);
      for (std::size_t p = 0; p < kSet; ++p) {
        const Shorts y = hn::MulFixedPoint15(magnitude, factors[p]);
        // Whole parts leave at the top.
        const Shorts rest =
            hn::ShiftRight<Fraction::kWholeBits>(hn::ShiftLeft<Fraction::kWholeBits>(y));
        squares[p] = add_squares(squares[p], rest);
      }
    }
    for (std::size_t p = 0; p < kSet; ++p) {
      const Floats some = hn::ConvertTo(kFloats, squares[p]);
      sums[p] = hn::MulAdd(some, hn::Set(kFloats, 1 / (Fraction::kOne * Fraction::kOne)), sums[p]);
    }
  }
}

/// Adds the squares of the distances of large values from codes under the scales, and under their
/// negatives.
template <bool kWithSigns>
HWY_INLINE void add_large(std::span<const float> values, const Floats (&inverses)[kSet],
                          Floats (&sums)[kSet], Floats (&opposite_sums)[kSet]) {
  const Floats integers = hn::Set(kFloats, kIntegers);
  for (const float value : values) {
    const Floats magnitude = hn::Set(kFloats, std::fabs(value));
    const Floats last = hn::Set(kFloats, value < 0 ? 8.0F : 7.0F);
    const Floats opposite_last = hn::Sub(hn::Set(kFloats, 15.0F), last);
    for (std::size_t p = 0; p < kSet; ++p) {
      const Floats y = hn::Mul(magnitude, inverses[p]);
      const Floats q = hn::Sub(hn::Add(y, integers), integers);
      const auto add = [&](Floats sum, Floats code) HWY_ATTR {
        const Floats distance = hn::Sub(y, hn::Min(q, code));
        return hn::MulAdd(distance, distance, sum);
      };
      sums[p] = add(sums[p], last);
      if constexpr (kWithSigns) opposite_sums[p] = add(opposite_sums[p], opposite_last);
    }
  }
}

/// True if integers can bound the errors of a group.
HWY_INLINE bool can_sieve(const Int4Group& group) {
  return group.weights == nullptr && group.n <= kLongest;
}

/// Sets the bounds, where they are known.
template <bool kWithSigns>
HWY_INLINE void set_bounds(const Int4Group& group, Candidates& candidates) {
  if (!can_sieve(group)) return;
  // None of the scales, of which the last is the least, cuts off less.
  const float limit = 7.5F * candidates.least();
  const std::size_t n_large = split(group, limit);
  const Floats radius = Fine::radius(group.n);
  // Sums of n terms, here and of the error itself.
  const Floats slack = hn::Set(kFloats, 1 - 0x1p-23F * static_cast<float>(group.n + 64));
  for (std::size_t i = 0; i < Candidates::kRoom; i += kSetLanes) {
    Floats scales[kSet], inverses[kSet], sums[kSet], opposite_sums[kSet];
    for (std::size_t p = 0; p < kSet; ++p) {
      scales[p] = hn::LoadU(kFloats, candidates.scales.data() + i + p * kVectorLanes);
      inverses[p] = hn::Div(hn::Set(kFloats, 1.0F), scales[p]);
      sums[p] = hn::Zero(kFloats);
    }
    add_small<Fine>(group, inverses, limit, sums);
    for (std::size_t p = 0; p < kSet; ++p) opposite_sums[p] = sums[p];
    add_large<kWithSigns>({group.large, n_large}, inverses, sums, opposite_sums);
    for (std::size_t p = 0; p < kSet; ++p) {
      const auto store_bound = [&](Floats sum, std::size_t sign) HWY_ATTR {
        const Floats least = hn::Max(hn::Sub(hn::Sqrt(sum), radius), hn::Zero(kFloats));
        const Floats distance = hn::Mul(least, scales[p]);
        hn::StoreU(hn::Mul(hn::Mul(distance, distance), slack), kFloats,
                   candidates.bounds[sign].data() + i + p * kVectorLanes);
      };
      store_bound(sums[p], 0);
      if constexpr (kWithSigns) store_bound(opposite_sums[p], 1);
    }
  }
}
#else
struct Coarse {
  static constexpr float kMost = 0;
  static Floats radius(std::size_t /*n*/) { return hn::Zero(kFloats); }
};

bool can_sieve(const Int4Group& /*group*/) {
  return false;
}

void split(const Int4Group& /*group*/, float /*limit*/) {}

template <class Fraction>
void add_small(const Int4Group& /*group*/, const Floats (&)[kSet], float /*limit*/,
               Floats (&)[kSet]) {}

template <bool kWithSigns>
void set_bounds(const Int4Group& /*group*/, Candidates& /*candidates*/) {}
#endif

template <bool kWithSigns>
HWY_INLINE float choose(const Int4Group& group) {
  Candidates candidates(group.amax, 1, kOfAmax, group.unit);
  set_bounds<kWithSigns>(group, candidates);
  // The likeliest first, to spare the others. On a tie the earlier wins, whatever was tried first.
  float best = 0, least = INFINITY;
  std::size_t place = 0;
  const auto consider = [&](std::size_t i, bool negative) HWY_ATTR {
    const float scale = negative ? -candidates.scales[i] : candidates.scales[i];
    const float error = error_of(group, {scale});
    const std::size_t own_place = 2 * i + (negative ? 1 : 0);
    if (error > least || (error == least && own_place > place)) return;
    best = scale;
    least = error;
    place = own_place;
  };
  const float least_bound = candidates.least_bound(false);
  const float opposite_bound = kWithSigns ? candidates.least_bound(true) : INFINITY;
  const bool first_is_negative = opposite_bound < least_bound;
  const auto first = static_cast<std::size_t>(std::countr_zero(
      candidates.at_most(std::min(least_bound, opposite_bound), first_is_negative)));
  consider(first, first_is_negative);
  for (const bool negative : {false, true}) {
    if (negative && !kWithSigns) break;
    std::uint64_t left = candidates.at_most(least, negative);
    if (negative == first_is_negative) left &= ~(std::uint64_t{1} << first);
    for (; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      if (candidates.bounds[negative ? 1 : 0][i] <= least) consider(i, negative);
    }
  }
  const float chosen = best / group.unit;
  const float fit = fitted(group, {best});
  if (fit != 0 && fit != chosen && error_of(group, {fit * group.unit}) < least) return fit;
  return chosen;
}

/// The ends of a group's values, and the weights of their errors.
struct Ends {
  explicit HWY_INLINE Ends(const Int4Group& group) {
    Floats low = hn::Zero(kFloats), high = hn::Zero(kFloats);
    for (std::size_t i = 0; i < group.n; i += kVectorLanes) {
      const Floats x = hn::LoadU(kFloats, group.values + i);
      low = hn::Min(low, x);
      high = hn::Max(high, x);
    }
    range.low = hn::GetLane(hn::MinOfLanes(kFloats, low));
    range.high = hn::GetLane(hn::MaxOfLanes(kFloats, high));
    if (group.weights == nullptr) return;
    const auto weight_of = [&group](float value) {
      const auto at = std::find(group.values, group.values + group.n, value) - group.values;
      return static_cast<std::size_t>(at) < group.n ? group.weights[at] : 0.0F;
    };
    low_weight = weight_of(range.low);
    high_weight = weight_of(range.high);
  }

  [[nodiscard]] HWY_INLINE float amax() const { return std::max(range.high, -range.low); }

  Int4Range range;
  float low_weight = 1, high_weight = 1;
};

/// Lower bounds of the errors of grids, by scale and zero point; infinite where there is no need to
/// try one.
class GridBounds {
 public:
  static constexpr std::size_t kZeros = 16;
  static_assert(kZeros % kVectorLanes == 0);

  /// `least`: error that is known to be possible.
  HWY_INLINE GridBounds(const Int4Group& group, const Ends& ends, const Candidates& candidates,
                        float least)
      // Sums of n terms, here and of the error itself.
      : slack_(std::max(0.0F, 1 - 0x1p-23F * static_cast<float>(group.n + 64))) {
    std::array<float, Candidates::kRoom> distances, cut_off;
    sum_distances(group, ends, candidates, distances.data(), cut_off.data());
    for (std::size_t i = 0; i < kInt4Steps; ++i) {
      if (!((distances[i] + cut_off[i]) * slack_ <= least)) continue;
      const float bound = add_scale(i, candidates.scales[i], distances[i], ends);
      if (bound < least_) likeliest_ = n_ - 1;
      least_ = std::min(least_, bound);
    }
  }

  /// Calls visit(scale, zero) for the likeliest, and then for each whose bound is at most what
  /// visit() returned last, with the candidate's number for the scale.
  template <typename Visit>
  HWY_INLINE void for_each(float least, const Visit& visit) const {
    if (n_ == 0) return;
    const std::size_t first =
        static_cast<std::size_t>(std::countr_zero(at_most(likeliest_, least_)));
    if (!(least_ <= least)) return;
    least = visit(scales_[likeliest_], first);
    for (std::size_t place = 0; place < n_; ++place) {
      std::uint64_t left = at_most(place, least);
      if (place == likeliest_) left &= ~(std::uint64_t{1} << first);
      for (; left != 0; left &= left - 1) {
        const auto zero = static_cast<std::size_t>(std::countr_zero(left));
        if (bounds_[place * kZeros + zero] <= least) least = visit(scales_[place], zero);
      }
    }
  }

 private:
  /// Sums the squared distances of values from integers times each scale; `cut_off` is what must be
  /// added under any zero point.
  static HWY_INLINE void sum_distances(const Int4Group& group, const Ends& ends,
                                       const Candidates& candidates, float* distances,
                                       float* cut_off) {
    // Scales next to the least BF16 number are rounded so much that values may be more steps.
    const bool is_sieved = can_sieve(group) && ends.amax() <= Coarse::kMost * candidates.least();
    if (is_sieved) split(group, ends.amax());
    for (std::size_t i = 0; i < Candidates::kRoom; i += kSetLanes) {
      Floats scales[kSet], inverses[kSet], sums[kSet];
      for (std::size_t p = 0; p < kSet; ++p) {
        scales[p] = hn::LoadU(kFloats, candidates.scales.data() + i + p * kVectorLanes);
        inverses[p] = hn::Div(hn::Set(kFloats, 1.0F), scales[p]);
        sums[p] = hn::Zero(kFloats);
      }
      if (is_sieved) {
        add_small<Coarse>(group, inverses, ends.amax(), sums);
        for (std::size_t p = 0; p < kSet; ++p) {
          const Floats least = hn::Sub(hn::Sqrt(sums[p]), Coarse::radius(group.n));
          const Floats distance = hn::Mul(hn::Max(least, hn::Zero(kFloats)), scales[p]);
          sums[p] = hn::Mul(distance, distance);
        }
      } else {
        add_all(group, scales, inverses, sums);
      }
      // Both ends together lie so far beyond the codes; the least sum of squares is that of halves.
      const Floats width = hn::Set(kFloats, ends.range.width());
      const Floats weight = hn::Set(kFloats, std::min(ends.low_weight, ends.high_weight) / 2);
      for (std::size_t p = 0; p < kSet; ++p) {
        const Floats beyond = hn::Max(hn::NegMulAdd(hn::Set(kFloats, kInt4Codes), scales[p], width),
                                      hn::Zero(kFloats));
        const Floats squares = hn::Sub(hn::Mul(beyond, beyond), in_half_steps(scales[p], 4));
        hn::StoreU(hn::Mul(weight, hn::Max(squares, hn::Zero(kFloats))), kFloats,
                   cut_off + i + p * kVectorLanes);
        hn::StoreU(sums[p], kFloats, distances + i + p * kVectorLanes);
      }
    }
  }

  /// Adds the weighted squares of the distances of values from integers times the scales.
  static HWY_INLINE void add_all(const Int4Group& group, const Floats (&scales)[kSet],
                                 const Floats (&inverses)[kSet], Floats (&sums)[kSet]) {
    const Floats integers = hn::Set(kFloats, kIntegers);
    for (std::size_t k = 0; k < group.n; ++k) {
      const Floats x = hn::Set(kFloats, group.values[k]);
      const Floats weight = hn::Set(kFloats, group.weights == nullptr ? 1 : group.weights[k]);
      for (std::size_t p = 0; p < kSet; ++p) {
        const Floats q = hn::Sub(hn::Add(hn::Mul(x, inverses[p]), integers), integers);
        const Floats rest = hn::NegMulAdd(q, scales[p], x);
        sums[p] = hn::MulAdd(hn::Mul(rest, rest), weight, sums[p]);
      }
    }
  }

  /// So many squares of half a step, which a distance that counts already may have; a little more.
  static HWY_INLINE Floats in_half_steps(Floats scale, float n) {
    return hn::Mul(hn::Mul(scale, scale), hn::Set(kFloats, n * (0.25F + 0x1p-20F)));
  }

  /// Sets the bounds of a scale's zero points, and returns the least.
  HWY_INLINE float add_scale(std::size_t candidate, float scale, float distance, const Ends& ends) {
    const Int4Zeros zeros(ends.range, scale);
    const Floats factor = hn::Set(kFloats, scale);
    const auto excess = [factor](float end, Floats codes, float weight) HWY_ATTR {
      const Floats beyond =
          hn::Max(hn::NegMulAdd(codes, factor, hn::Set(kFloats, end)), hn::Zero(kFloats));
      const Floats squares = hn::Sub(hn::Mul(beyond, beyond), in_half_steps(factor, 1));
      return hn::Mul(hn::Set(kFloats, weight), hn::Max(squares, hn::Zero(kFloats)));
    };
    float* bounds = bounds_.data() + n_ * kZeros;
    Floats least = hn::Set(kFloats, INFINITY);
    for (std::size_t z = 0; z < kZeros; z += kVectorLanes) {
      const Floats zero = hn::Iota(kFloats, static_cast<float>(z));
      const Floats rest = hn::Sub(hn::Set(kFloats, kInt4Codes), zero);
      const Floats more = hn::Add(excess(-ends.range.low, zero, ends.low_weight),
                                  excess(ends.range.high, rest, ends.high_weight));
      const Floats bound =
          hn::Mul(hn::Add(hn::Set(kFloats, distance), more), hn::Set(kFloats, slack_));
      const auto is_tried = hn::And(hn::Ge(zero, hn::Set(kFloats, static_cast<float>(zeros.first))),
                                    hn::Le(zero, hn::Set(kFloats, static_cast<float>(zeros.last))));
      const Floats own = hn::IfThenElse(is_tried, bound, hn::Set(kFloats, INFINITY));
      hn::StoreU(own, kFloats, bounds + z);
      least = hn::Min(least, own);
    }
    scales_[n_++] = candidate;
    return hn::GetLane(hn::MinOfLanes(kFloats, least));
  }

  [[nodiscard]] HWY_INLINE std::uint64_t at_most(std::size_t place, float error) const {
    std::uint64_t found = 0;
    for (std::size_t z = 0; z < kZeros; z += kVectorLanes) {
      const Floats bound = hn::LoadU(kFloats, bounds_.data() + place * kZeros + z);
      found |= bits_of(hn::Le(bound, hn::Set(kFloats, error))) << z;
    }
    return found;
  }

  float slack_, least_ = INFINITY;
  std::size_t n_ = 0, likeliest_ = 0;
  std::array<std::size_t, kInt4Steps> scales_;  // candidates that have bounds
  std::array<float, kInt4Steps * kZeros> bounds_;
};

HWY_INLINE Int4Grid choose_grid(const Int4Group& group) {
  Int4Grid best{choose<false>(group) * group.unit};
  float least = error_of(group, best);
  const Ends ends(group);
  const Candidates candidates(ends.range.width(), group.unit, kOfRange, group.unit);
  // On a tie the earlier wins, whatever was tried first: the one without a zero point is 0.
  std::size_t place = 0;
  GridBounds(group, ends, candidates, least)
      .for_each(least, [&](std::size_t i, std::size_t zero) HWY_ATTR {
        const Int4Grid grid{candidates.scales[i], static_cast<std::uint8_t>(zero)};
        const float error = error_of(group, grid);
        const std::size_t own_place = 1 + i * GridBounds::kZeros + zero;
        if (error > least || (error == least && own_place > place)) return least;
        best = grid;
        least = error;
        place = own_place;
        return least;
      });
  const float fit = fitted(group, best) * group.unit;
  if (fit != 0 && fit != best.scale && error_of(group, {fit, best.zero}) < least) best.scale = fit;
  best.scale /= group.unit;
  return best;
}

}  // namespace

float choose_int4_scale(const Int4Group& group, bool with_signs) {
  return with_signs ? choose<true>(group) : choose<false>(group);
}

Int4Grid choose_int4_grid(const Int4Group& group) {
  return choose_grid(group);
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(choose_int4_scale);
HWY_EXPORT(choose_int4_grid);

/// Calls see(lane, x, q, weight) for one value after the other. The scale is in units.
template <typename See>
void for_each_value(const Int4Group& group, const Int4Grid& grid, const See& see) {
  const float inverse = 1 / grid.scale;
  const float least = Int4::value(0, grid.zero), most = Int4::value(kLastInt4Code, grid.zero);
  for (std::size_t i = 0; i < group.n; ++i) {
    const float x = group.values[i];
    const float q = (std::clamp(x * inverse, least, most) + kIntegers) - kIntegers;
    see(i % kInt4Lanes, x, q, group.weights == nullptr ? 1.0F : group.weights[i]);
  }
}

float error_of(const Int4Group& group, const Int4Grid& grid) {
  std::array<float, kInt4Lanes> sums{};
  for_each_value(group, grid, [&](std::size_t lane, float x, float q, float weight) {
    const float rest = x - q * grid.scale;
    sums[lane] += rest * rest * weight;
  });
  return folded(sums);
}

float fitted(const Int4Group& group, const Int4Grid& grid) {
  std::array<float, kInt4Lanes> products{}, squares{};
  for_each_value(group, grid, [&](std::size_t lane, float x, float q, float weight) {
    products[lane] += x * q * weight;
    squares[lane] += q * q * weight;
  });
  return fitted_int4_scale(folded(products), folded(squares), group.unit);
}

float choose_int4_scale(const Int4Group& group, bool with_signs) {
  float best = stored_int4_scale(group.amax / 7);
  float least = error_of(group, {best * group.unit});
  const auto consider = [&](float scale) {
    const float error = error_of(group, {scale * group.unit});
    if (!(error < least)) return;
    least = error;
    best = scale;
  };
  for (std::size_t i = 0; i < kInt4Steps; ++i) {
    const float scale = stored_int4_scale(group.amax / kOfAmax.at(i));
    if (i > 0) consider(scale);
    if (with_signs) consider(-scale);
  }
  if (const float fit = fitted(group, {best * group.unit}); fit != 0) consider(fit);
  return best;
}

Int4Range range_of(const Int4Group& group) {
  Int4Range range;
  for (std::size_t i = 0; i < group.n; ++i) {
    range.low = std::min(range.low, group.values[i]);
    range.high = std::max(range.high, group.values[i]);
  }
  return range;
}

Int4Grid choose_int4_grid(const Int4Group& group) {
  const float unit = group.unit;
  Int4Grid best{choose_int4_scale(group, false)};
  float least = error_of(group, {best.scale * unit, best.zero});
  const auto consider = [&](Int4Grid grid) {
    const float error = error_of(group, {grid.scale * unit, grid.zero});
    if (!(error < least)) return;
    least = error;
    best = grid;
  };
  const Int4Range range = range_of(group);
  for (std::size_t i = 0; i < kInt4Steps; ++i) {
    const float scale = stored_int4_scale(range.width() / kOfRange.at(i) / unit);
    const Int4Zeros zeros(range, scale * unit);
    for (int zero = zeros.first; zero <= zeros.last; ++zero)
      consider({scale, static_cast<std::uint8_t>(zero)});
  }
  if (const float fit = fitted(group, {best.scale * unit, best.zero}); fit != 0)
    consider({fit, best.zero});
  return best;
}

/// The numbers of one group, padded to whole vectors.
struct Room {
  explicit Room(std::size_t n)
      : values((n + kInt4Lanes - 1) / kInt4Lanes * kInt4Lanes),
        weights(values.size()),
        large(values.size()),
        magnitudes(values.size()) {}

  std::vector<float> values, weights, large;
  std::vector<std::int16_t> magnitudes;
};

/// The two searches of a twin.
struct Choosers {
  float (*scale)(const Int4Group& group, bool with_signs);
  Int4Grid (*grid)(const Int4Group& group);
};

void choose_all(const Int4Groups& in, std::span<float> scales, std::span<std::uint8_t> zeros,
                const Choosers& choosers) {
  INGOT_CHECK(scales.size() == in.n_groups && in.group_cols > 0);
  INGOT_CHECK(zeros.empty() || zeros.size() == in.n_groups);
  const bool searches = in.search != ScaleSearch::kAmax;
  const auto choose = [&](const Int4Group& group) -> Int4Grid {
    if (zeros.empty()) return {choosers.scale(group, in.search == ScaleSearch::kSigned)};
    return searches ? choosers.grid(group) : int4_grid_by_range(range_of(group), group.unit);
  };
  const bool has_room = searches || !zeros.empty();
  Room room(has_room ? in.group_cols : 0);
  for (std::size_t g = 0; g < in.n_groups; ++g) {
    const float* values = in.values + g * in.group_cols;
    const float amax = finite_amax(values, in.group_cols);
    if (!zeros.empty()) zeros[g] = kInt4Zero;
    if (amax == 0 || !has_room) {
      scales[g] = amax == 0 ? 1.0F : stored_int4_scale(amax / kOfAmax.first);
      continue;
    }
    const float unit = int4_unit(amax);
    std::transform(values, values + in.group_cols, room.values.begin(),
                   [unit](float value) { return value * unit; });
    if (in.weights != nullptr)
      std::copy_n(in.weights + g * in.group_cols, in.group_cols, room.weights.begin());
    const Int4Grid grid = choose({.values = room.values.data(),
                                  .weights = in.weights == nullptr ? nullptr : room.weights.data(),
                                  .n = room.values.size(),
                                  .amax = amax,
                                  .unit = unit,
                                  .magnitudes = room.magnitudes.data(),
                                  .large = room.large.data()});
    scales[g] = grid.scale;
    if (!zeros.empty()) zeros[g] = grid.zero;
  }
}

}  // namespace

void choose_int4_scales(const Int4Groups& in, std::span<float> scales,
                        std::span<std::uint8_t> zeros) {
  choose_all(
      in, scales, zeros,
      {.scale =
           [](const Int4Group& group, bool with_signs) {
             return HWY_DYNAMIC_DISPATCH(choose_int4_scale)(group, with_signs);
           },
       .grid =
           [](const Int4Group& group) { return HWY_DYNAMIC_DISPATCH(choose_int4_grid)(group); }});
}

void scalar::choose_int4_scales(const Int4Groups& in, std::span<float> scales,
                                std::span<std::uint8_t> zeros) {
  choose_all(in, scales, zeros, {.scale = choose_int4_scale, .grid = choose_int4_grid});
}

}  // namespace ingot::quantize
#endif
