// Finds the scale of a group of INT4 codes that leaves the least error.
//
// Most candidates need no exact error. A sieve bounds the errors of all from below, a candidate per
// lane: values that no candidate cuts off, nearly all, in 16-bit integers, y = |x| / s with twelve
// bits of fraction and its distance from the nearest integer; the few large ones in FP32. The
// candidate that looks best is tried exactly, and then those whose bound is not above its error.

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
#include "quantize/kernels/int4_group.h"
#include "quantize/kernels/int4_scales.h"
#include "quantize/kernels/row_scan.h"

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
HWY_INLINE void for_each_vector(const Int4Group& group, float scale, const Visit& visit) {
  const Floats inverse = hn::Set(kFloats, 1 / scale);
  const Floats integers = hn::Set(kFloats, kIntegers);
  const Floats least = hn::Set(kFloats, -8.0F), most = hn::Set(kFloats, 7.0F);
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

HWY_INLINE float error_of(const Int4Group& group, float scale) {
  Sums sums;
  const Floats factor = hn::Set(kFloats, scale);
  for_each_vector(group, scale, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
    // q x scale has at most twelve significant bits: fusing changes nothing.
    const Floats rest = hn::NegMulAdd(q, factor, x);
    sums.part[p] = hn::Add(sums.part[p], weigh(hn::Mul(rest, rest)));
  });
  return sums.fold();
}

/// The scale that fits the codes under `scale` best, or 0.
HWY_INLINE float fitted(const Int4Group& group, float scale) {
  Sums products, squares;
  for_each_vector(group, scale, [&](std::size_t p, Floats x, Floats q, const auto& weigh) HWY_ATTR {
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

  explicit HWY_INLINE Candidates(const Int4Group& group) {
    const Floats amax = hn::Set(kFloats, group.amax), unit = hn::Set(kFloats, group.unit);
    const Floats smallest = hn::Set(kFloats, kSmallestInt4Scale);
    const Floats largest = hn::Set(kFloats, kLargestInt4Scale);
    const auto word = [](std::uint32_t bits) HWY_ATTR { return hn::Set(kWords, bits); };
    for (std::size_t i = 0; i < kRoom; i += kVectorLanes) {
      // Lanes behind the last candidate repeat it.
      const Floats step = hn::Min(hn::Iota(kFloats, static_cast<float>(i)),
                                  hn::Set(kFloats, static_cast<float>(kInt4Steps - 1)));
      const Floats part =
          hn::Add(hn::Set(kFloats, 7.0F), hn::Mul(step, hn::Set(kFloats, kInt4Step)));
      const auto bits = hn::BitCast(kWords, hn::Div(amax, part));
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

#if HWY_TARGET != HWY_SCALAR
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
constexpr hn::RepartitionToNarrow<decltype(kInts)> kShorts;
using Ints = hn::Vec<decltype(kInts)>;
using Shorts = hn::Vec<decltype(kShorts)>;

/// Magnitudes as integers up to kTop, distances in fractions of kOne.
constexpr float kTop = 32767;
constexpr int kFractionBits = 12, kWholeBits = 16 - kFractionBits;
constexpr float kOne = 1 << kFractionBits;
/// So many squares of at most kOne / 2 fit 31 bits.
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

/// Vectors of candidates that are tried together.
constexpr std::size_t kSet = std::min<std::size_t>(6, Candidates::kRoom / kVectorLanes);
constexpr std::size_t kSetLanes = kSet * kVectorLanes;
static_assert(Candidates::kRoom % kSetLanes == 0);

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
HWY_INLINE void add_small(const Int4Group& group, const Floats (&inverses)[kSet], float limit,
                          Floats (&sums)[kSet]) {
  Shorts factors[kSet];
  for (std::size_t p = 0; p < kSet; ++p) {
    // The rounding multiplication returns the upper half of twice a product: y in units of 1/kOne.
    const Floats by = hn::Set(kFloats, kOne * 0x1p15F * limit / kTop);
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
        const Shorts rest = hn::ShiftRight<kWholeBits>(hn::ShiftLeft<kWholeBits>(y));
        squares[p] = add_squares(squares[p], rest);
      }
    }
    for (std::size_t p = 0; p < kSet; ++p) {
      const Floats some = hn::ConvertTo(kFloats, squares[p]);
      sums[p] = hn::MulAdd(some, hn::Set(kFloats, 1 / (kOne * kOne)), sums[p]);
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

/// Sets the bounds, where they are known.
template <bool kWithSigns>
HWY_INLINE void set_bounds(const Int4Group& group, Candidates& candidates) {
  if (group.weights != nullptr || group.n > kLongest) return;
  // None of the scales, of which the last is the least, cuts off less.
  const float limit = 7.5F * candidates.scales[kInt4Steps - 1];
  const std::size_t n_large = split(group, limit);
  // Three roundings move a distance by less than 1.5 in fractions of kOne: magnitude and factor by
  // 0.51 of their last places, the product by 0.5. Those of FP32 are far less.
  const Floats radius = hn::Set(kFloats, 1.55F / kOne * std::sqrt(static_cast<float>(group.n)));
  // Sums of n terms, here and of the error itself.
  const Floats slack = hn::Set(kFloats, 1 - 0x1p-23F * static_cast<float>(group.n + 64));
  for (std::size_t i = 0; i < Candidates::kRoom; i += kSetLanes) {
    Floats scales[kSet], inverses[kSet], sums[kSet], opposite_sums[kSet];
    for (std::size_t p = 0; p < kSet; ++p) {
      scales[p] = hn::LoadU(kFloats, candidates.scales.data() + i + p * kVectorLanes);
      inverses[p] = hn::Div(hn::Set(kFloats, 1.0F), scales[p]);
      sums[p] = hn::Zero(kFloats);
    }
    add_small(group, inverses, limit, sums);
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
template <bool kWithSigns>
void set_bounds(const Int4Group& /*group*/, Candidates& /*candidates*/) {}
#endif

template <bool kWithSigns>
HWY_INLINE float choose(const Int4Group& group) {
  Candidates candidates(group);
  set_bounds<kWithSigns>(group, candidates);
  // The likeliest first, to spare the others. On a tie the earlier wins, whatever was tried first.
  float best = 0, least = INFINITY;
  std::size_t place = 0;
  const auto consider = [&](std::size_t i, bool negative) HWY_ATTR {
    const float scale = negative ? -candidates.scales[i] : candidates.scales[i];
    const float error = error_of(group, scale);
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
  const float fit = fitted(group, best);
  if (fit != 0 && fit != chosen && error_of(group, fit * group.unit) < least) return fit;
  return chosen;
}

}  // namespace

float choose_int4_scale(const Int4Group& group, bool with_signs) {
  return with_signs ? choose<true>(group) : choose<false>(group);
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(choose_int4_scale);

/// Calls see(lane, x, q, weight) for one value after the other.
template <typename See>
void for_each_value(const Int4Group& group, float scale, const See& see) {
  const float inverse = 1 / scale;
  for (std::size_t i = 0; i < group.n; ++i) {
    const float x = group.values[i];
    const float q = (std::clamp(x * inverse, -8.0F, 7.0F) + kIntegers) - kIntegers;
    see(i % kInt4Lanes, x, q, group.weights == nullptr ? 1.0F : group.weights[i]);
  }
}

float error_of(const Int4Group& group, float scale) {
  std::array<float, kInt4Lanes> sums{};
  for_each_value(group, scale, [&](std::size_t lane, float x, float q, float weight) {
    const float rest = x - q * scale;
    sums[lane] += rest * rest * weight;
  });
  return folded(sums);
}

float fitted(const Int4Group& group, float scale) {
  std::array<float, kInt4Lanes> products{}, squares{};
  for_each_value(group, scale, [&](std::size_t lane, float x, float q, float weight) {
    products[lane] += x * q * weight;
    squares[lane] += q * q * weight;
  });
  return fitted_int4_scale(folded(products), folded(squares), group.unit);
}

float choose_int4_scale(const Int4Group& group, bool with_signs) {
  float best = stored_int4_scale(group.amax / 7);
  float least = error_of(group, best * group.unit);
  const auto consider = [&](float scale) {
    const float error = error_of(group, scale * group.unit);
    if (!(error < least)) return;
    least = error;
    best = scale;
  };
  for (std::size_t i = 0; i < kInt4Steps; ++i) {
    const float scale = stored_int4_scale(group.amax / (7 + static_cast<float>(i) * kInt4Step));
    if (i > 0) consider(scale);
    if (with_signs) consider(-scale);
  }
  if (const float fit = fitted(group, best * group.unit); fit != 0) consider(fit);
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

template <typename Choose>
void choose_all(const Int4Groups& in, std::span<float> scales, const Choose& choose) {
  INGOT_CHECK(scales.size() == in.n_groups && in.group_cols > 0);
  const bool searches = in.search != ScaleSearch::kAmax;
  Room room(searches ? in.group_cols : 0);
  for (std::size_t g = 0; g < in.n_groups; ++g) {
    const float* values = in.values + g * in.group_cols;
    const float amax = finite_amax(values, in.group_cols);
    if (amax == 0 || !searches) {
      scales[g] = amax == 0 ? 1.0F : stored_int4_scale(amax / 7);
      continue;
    }
    const float unit = int4_unit(amax);
    std::transform(values, values + in.group_cols, room.values.begin(),
                   [unit](float value) { return value * unit; });
    if (in.weights != nullptr)
      std::copy_n(in.weights + g * in.group_cols, in.group_cols, room.weights.begin());
    scales[g] = choose({.values = room.values.data(),
                        .weights = in.weights == nullptr ? nullptr : room.weights.data(),
                        .n = room.values.size(),
                        .amax = amax,
                        .unit = unit,
                        .magnitudes = room.magnitudes.data(),
                        .large = room.large.data()},
                       in.search == ScaleSearch::kSigned);
  }
}

}  // namespace

void choose_int4_scales(const Int4Groups& in, std::span<float> scales) {
  choose_all(in, scales, [](const Int4Group& group, bool with_signs) {
    return HWY_DYNAMIC_DISPATCH(choose_int4_scale)(group, with_signs);
  });
}

void scalar::choose_int4_scales(const Int4Groups& in, std::span<float> scales) {
  choose_all(in, scales, choose_int4_scale);
}

}  // namespace ingot::quantize
#endif
