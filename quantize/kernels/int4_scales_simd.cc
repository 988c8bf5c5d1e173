// Which scale of a group of INT4 codes leaves the least error.
//
// Most candidates need no exact error. A sieve bounds the errors of sixteen at a time from below,
// a candidate per lane, in 16-bit integers: y = |x| / s with eleven bits of fraction, and its
// distance from the codes. The candidate that looks best is tried exactly, and then those whose
// bound is not above its error, on average three of 41.

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
#include "formats/container/bfloat16.h"
#include "quantize/kernels/int4_scales.h"
#include "quantize/kernels/row_scan.h"

// Inputs of both twins; once, whatever the number of targets.
#ifndef INGOT_QUANTIZE_INT4_GROUP_
#define INGOT_QUANTIZE_INT4_GROUP_
namespace ingot::quantize {

inline constexpr std::size_t kInt4Lanes = 16;
/// The last place of a sum with it is that of integers, with room on both sides.
inline constexpr float kIntegers = 0x1.8p23F;

/// One group. Its values are in units in which amax is a number from 1 to 2.
struct Int4Group {
  const float* values = nullptr;
  const float* weights = nullptr;  ///< null: all 1
  std::size_t n = 0;               ///< a multiple of kInt4Lanes, with zeros at the end
  float amax = 0;                  ///< above zero, of the values as they are
  float unit = 1;                  ///< a power of two, the factor of the values
  // Room for as many.
  std::int16_t* magnitudes = nullptr;
  std::int16_t* largest_codes = nullptr;
};

inline constexpr std::size_t kInt4Steps = 41;  // from 7 to 7 + 40 / 8
inline constexpr float kInt4Step = 0.125F;
inline constexpr float kSmallestInt4Scale = 0x1p-133F;
inline constexpr float kLargestInt4Scale = 0x1.FEp127F;

/// A scale above zero as it is stored.
inline float stored_int4_scale(float scale) {
  return std::clamp(formats::float_from_bf16(formats::bf16_from_float(scale)), kSmallestInt4Scale,
                    kLargestInt4Scale);
}

/// The power of two that brings amax, above zero, to 1 ... 2, as far as FP32 has it.
inline float int4_unit(float amax) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(amax) >> 23;
  const std::uint32_t wanted = exponent >= 253 ? 1 : 254 - exponent;
  return std::bit_cast<float>(std::min(wanted, 254U) << 23);
}

/// The scale that fits the codes best, from the sums of x q and q^2 in units; 0: there is none.
inline float fitted_int4_scale(float products, float squares, float unit) {
  const float fitted = products / squares / unit;
  if (!std::isfinite(fitted) || fitted == 0) return 0;
  return std::copysign(stored_int4_scale(std::fabs(fitted)), fitted);
}

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
      const Floats step = hn::Iota(kFloats, static_cast<float>(i));
      const Floats part =
          hn::Add(hn::Set(kFloats, 7.0F), hn::Mul(step, hn::Set(kFloats, kInt4Step)));
      const auto bits = hn::BitCast(kWords, hn::Div(amax, part));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), word(1));
      const auto rounded = hn::And(hn::Add(hn::Add(bits, word(0x7FFF)), odd), word(0xFFFF0000));
      const Floats stored = hn::Min(hn::Max(hn::BitCast(kFloats, rounded), smallest), largest);
      hn::StoreU(hn::Mul(stored, unit), kFloats, scales.data() + i);
    }
  }

  std::array<float, kRoom> scales;
  std::array<float, 2 * kRoom> bounds{};  ///< of the scales, then of their negatives
};

#if HWY_TARGET != HWY_SCALAR
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
constexpr hn::RepartitionToNarrow<decltype(kInts)> kShorts;
using Ints = hn::Vec<decltype(kInts)>;
using Shorts = hn::Vec<decltype(kShorts)>;

/// Magnitudes as integers up to kTop, distances in fractions of kOne.
constexpr float kTop = 32767;
constexpr int kFractionBits = 11, kWholeBits = 16 - kFractionBits;
constexpr std::int16_t kOne = 1 << kFractionBits;
/// The greatest distance that is counted, and so many values whose squares fit 31 bits.
constexpr std::int16_t kFarAway = 2 * kOne - 1;
constexpr std::size_t kValuesAtOnce = 128;
/// Longer sums of FP32 may be less than the bound by their roundings.
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

/// Magnitudes times `factor`, and the largest code on each one's side under a positive scale.
HWY_INLINE void store_integers(const Int4Group& group, float factor) {
  constexpr hn::Rebind<std::int16_t, decltype(kFloats)> kHalf;
  const Floats by = hn::Set(kFloats, factor);
  const Ints seven = hn::Set(kInts, 7 * kOne), eight = hn::Set(kInts, 8 * kOne);
  for (std::size_t i = 0; i < group.n; i += kVectorLanes) {
    const Floats x = hn::LoadU(kFloats, group.values + i);
    const Ints magnitude = hn::NearestInt(hn::Mul(hn::Abs(x), by));
    const auto is_negative = hn::RebindMask(kInts, hn::Lt(x, hn::Zero(kFloats)));
    hn::StoreU(hn::DemoteTo(kHalf, magnitude), kHalf, group.magnitudes + i);
    hn::StoreU(hn::DemoteTo(kHalf, hn::IfThenElse(is_negative, eight, seven)), kHalf,
               group.largest_codes + i);
  }
}

/// Sums of squared distances from the codes under kInt4Lanes scales, and under their negatives.
template <bool kWithSigns>
HWY_INLINE void sum_distances(const Int4Group& group, const Ints (&factors)[kParts],
                              Floats (&sums)[kParts], Floats (&opposite_sums)[kParts]) {
  const Shorts far_away = hn::Set(kShorts, kFarAway);
  const Shorts both_codes = hn::Set(kShorts, 15 * kOne);
  for (std::size_t p = 0; p < kParts; ++p) sums[p] = opposite_sums[p] = hn::Zero(kFloats);
  for (std::size_t first = 0; first < group.n; first += kValuesAtOnce) {
    Ints squares[kParts], opposite[kParts];
    for (std::size_t p = 0; p < kParts; ++p) squares[p] = opposite[p] = hn::Zero(kInts);
    const std::size_t end = std::min(group.n, first + kValuesAtOnce);
    for (std::size_t i = first; i < end; i += 2) {
      const Shorts magnitude = two_of(group.magnitudes + i);
      const Shorts largest = two_of(group.largest_codes + i);
      for (std::size_t p = 0; p < kParts; ++p) {
        const Shorts y = hn::MulFixedPoint15(magnitude, hn::BitCast(kShorts, factors[p]));
        // Whole parts leave at the top. Behind the largest code, the distance from it is greater
        // than that from the nearest integer.
        const Shorts rest = hn::ShiftRight<kWholeBits>(hn::ShiftLeft<kWholeBits>(y));
        const auto distance = [&](Shorts code) HWY_ATTR {
          return hn::Min(hn::Max(rest, hn::Sub(y, code)), far_away);
        };
        squares[p] = add_squares(squares[p], distance(largest));
        if constexpr (kWithSigns)
          opposite[p] = add_squares(opposite[p], distance(hn::Sub(both_codes, largest)));
      }
    }
    for (std::size_t p = 0; p < kParts; ++p) {
      sums[p] = hn::Add(sums[p], hn::ConvertTo(kFloats, squares[p]));
      if constexpr (kWithSigns)
        opposite_sums[p] = hn::Add(opposite_sums[p], hn::ConvertTo(kFloats, opposite[p]));
    }
  }
}

/// Sets the bounds, where they are known.
template <bool kWithSigns>
HWY_INLINE void set_bounds(const Int4Group& group, Candidates& candidates) {
  if (group.weights != nullptr || group.n > kLongest) return;
  const float top = kTop / (group.amax * group.unit);
  // |x| / scale in fractions of kOne is the upper half of twice a product.
  const Floats twice = hn::Set(kFloats, kOne * 0x1p15F / top);
  const float last = kOne * 0x1p15F / top / candidates.scales[kInt4Steps - 1];
  if (!(last < 32000)) return;  // subnormal scales far below their quotients
  store_integers(group, top);
  // Three roundings move a distance by less than 1.39 in units of the last place: magnitude and
  // factor by 0.51 of theirs, the product by 0.5.
  const Floats radius = hn::Set(kFloats, 1.41F * std::sqrt(static_cast<float>(group.n)));
  const auto bound = [&](Floats sum, Floats scale) HWY_ATTR {
    const Floats least = hn::Max(hn::Sub(hn::Sqrt(sum), radius), hn::Zero(kFloats));
    const Floats distance = hn::Mul(least, hn::Mul(scale, hn::Set(kFloats, 1.0F / kOne)));
    return hn::Mul(hn::Mul(distance, distance), hn::Set(kFloats, 1 - 0x1p-10F));
  };
  for (std::size_t i = 0; i < Candidates::kRoom; i += kInt4Lanes) {
    Ints factors[kParts];
    Floats scales[kParts], sums[kParts], opposite_sums[kParts];
    for (std::size_t p = 0; p < kParts; ++p) {
      scales[p] = hn::LoadU(kFloats, candidates.scales.data() + i + p * kVectorLanes);
      const Ints factor = hn::NearestInt(hn::Div(twice, scales[p]));
      factors[p] = hn::Or(factor, hn::ShiftLeft<16>(factor));
    }
    sum_distances<kWithSigns>(group, factors, sums, opposite_sums);
    for (std::size_t p = 0; p < kParts; ++p) {
      float* to = candidates.bounds.data() + i + p * kVectorLanes;
      hn::StoreU(bound(sums[p], scales[p]), kFloats, to);
      if constexpr (kWithSigns)
        hn::StoreU(bound(opposite_sums[p], scales[p]), kFloats, to + Candidates::kRoom);
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
  const auto signed_scale = [&](std::size_t i, bool negative) {
    return negative ? -candidates.scales[i] : candidates.scales[i];
  };
  const auto bound = [&](std::size_t i, bool negative) {
    return candidates.bounds[i + (negative ? Candidates::kRoom : 0)];
  };
  // The likeliest first, to spare the others; then they are compared in their order.
  std::size_t likeliest = 0;
  bool is_negative = false;
  for (std::size_t i = 0; i < kInt4Steps; ++i) {
    for (const bool negative : {false, true}) {
      if (negative && !kWithSigns) break;
      if (bound(i, negative) < bound(likeliest, is_negative)) {
        likeliest = i;
        is_negative = negative;
      }
    }
  }
  const float likely = signed_scale(likeliest, is_negative);
  const float likely_error = error_of(group, likely);
  float best = likely, least = likely_error;
  bool before = true;  // candidates before the likeliest win on a tie
  for (std::size_t i = 0; i < kInt4Steps; ++i) {
    for (const bool negative : {false, true}) {
      if (negative && !kWithSigns) break;
      if (i == likeliest && negative == is_negative) {
        before = false;
        continue;
      }
      if (bound(i, negative) > least) continue;
      const float scale = signed_scale(i, negative);
      const float error = error_of(group, scale);
      if (error < least || (before && best == likely && error == least)) {
        best = scale;
        least = error;
      }
    }
  }
  const float fit = fitted(group, best);
  if (fit != 0 && error_of(group, fit * group.unit) < least) return fit;
  return best / group.unit;
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

/// Room for one group.
struct Room {
  explicit Room(std::size_t n)
      : values((n + kInt4Lanes - 1) / kInt4Lanes * kInt4Lanes),
        weights(values.size()),
        magnitudes(values.size()),
        largest_codes(values.size()) {}

  std::vector<float> values, weights;
  std::vector<std::int16_t> magnitudes, largest_codes;
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
                        .largest_codes = room.largest_codes.data()},
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
