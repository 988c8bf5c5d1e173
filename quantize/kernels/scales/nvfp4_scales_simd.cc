// The scale of an NVFP4 block.
//
// As many blocks at once as there are lanes: the largest magnitude of each, and the code by amax.
//
// By search: a candidate is tried on as many blocks at once as there are lanes, a block per lane,
// after a transposition. The sums of errors then need no horizontal steps, every lane walks the
// window around its own amax code, and the least error is kept lane by lane. Per candidate and
// value that is eight operations: multiply, find a number whose last place is the step, round to
// E2M1 by subtracting from it twice, subtract, square, add; and cutting off at 6 below the amax
// code.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/scales/nvfp4_scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/scales/nvfp4_scales_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

using scalar::choose_nvfp4_scales;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kFloats;
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
constexpr hn::Rebind<std::uint8_t, decltype(kFloats)> kByteCodes;
using Floats = hn::Vec<decltype(kFloats)>;
using Ints = hn::Vec<decltype(kInts)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

constexpr std::int32_t kLargestCode = 0x7E;
constexpr std::int32_t kCodeOfOne = 0x38;

/// E4M3 codes of positive numbers, saturating.
HWY_INLINE Ints e4m3_code(Floats value) {
  const Floats magnitude = hn::Min(value, hn::Set(kFloats, 448.0F));
  const Floats own = hn::And(magnitude, hn::BitCast(kFloats, hn::Set(kInts, 0x7F800000)));
  const Floats power = hn::Max(own, hn::Set(kFloats, 0x1p-6F));
  const Ints unit = hn::Add(hn::BitCast(kInts, power), hn::Set(kInts, 20 << 23));
  const Ints sum = hn::BitCast(kInts, hn::Add(magnitude, hn::BitCast(kFloats, unit)));
  const Ints exponents = hn::Sub(hn::ShiftRight<20>(unit), hn::Set(kInts, (121 + 20) << 3));
  return hn::Add(hn::Sub(sum, unit), exponents);
}

/// Values of E4M3 codes 0 to 0x7E.
HWY_INLINE Floats e4m3_value(Ints code) {
  const Ints moved = hn::ShiftLeft<20>(code);
  const Floats normal = hn::BitCast(kFloats, hn::Add(moved, hn::Set(kInts, 120 << 23)));
  const Floats first_normal = hn::Set(kFloats, 0x1p-6F);
  const Floats tiny =
      hn::Sub(hn::BitCast(kFloats, hn::Add(moved, hn::Set(kInts, 121 << 23))), first_normal);
  return hn::IfThenElse(hn::Lt(normal, first_normal), tiny, normal);
}

/// Constants of all blocks, in registers.
struct Rule {
  explicit HWY_INLINE Rule(const Nvfp4Blocks& in)
      : global(hn::Set(kFloats, in.global)),
        six_globals(hn::Set(kFloats, 6.0F * in.global)),
        lowest(hn::Set(kInts, in.lowest_code)),
        divides(in.divides) {}

  [[nodiscard]] HWY_INLINE Floats raw(Floats amax) const {
    return divides ? hn::Mul(global, hn::Div(amax, hn::Set(kFloats, 6.0F)))
                   : hn::Div(amax, six_globals);
  }
  [[nodiscard]] HWY_INLINE Ints code(Floats raw_scale) const {
    return hn::Max(e4m3_code(raw_scale), lowest);
  }
  [[nodiscard]] HWY_INLINE Floats effective(Ints code) const {
    const Floats value = e4m3_value(code);
    return divides ? hn::Div(value, global) : hn::Mul(value, global);
  }
  /// Magnitudes in units of the global scale.
  [[nodiscard]] HWY_INLINE Floats in_units(Floats magnitude) const {
    return divides ? hn::Mul(magnitude, global) : hn::Div(magnitude, global);
  }

  Floats global, six_globals;
  Ints lowest;
  bool divides;
};

/// Stores the results of kLanes blocks.
HWY_INLINE void store_scales(const Rule& rule, Floats amax, Ints code, std::uint8_t* codes,
                             float* effective) {
  const auto empty = hn::RebindMask(kInts, hn::Eq(amax, hn::Zero(kFloats)));
  const Ints chosen = hn::IfThenElse(empty, hn::Set(kInts, kCodeOfOne), code);
  hn::StoreU(hn::U8FromU32(hn::BitCast(kWords, chosen)), kByteCodes, codes);
  hn::StoreU(rule.effective(chosen), kFloats, effective);
}

/// Four values of each of kLanes blocks, from value `first` on: the result's 128-bit part p holds
/// those of block 4p + row.
HWY_INLINE Floats load_fours(const float* blocks, std::size_t row, std::size_t first) {
  const float* from = blocks + row * kNvfp4Block + first;
  constexpr std::size_t kPart = 4 * kNvfp4Block;
  constexpr hn::Full128<float> kFour;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  constexpr hn::Full256<float> kEight;
  return hn::Combine(
      kFloats,
      hn::Combine(kEight, hn::LoadU(kFour, from + 3 * kPart), hn::LoadU(kFour, from + 2 * kPart)),
      hn::Combine(kEight, hn::LoadU(kFour, from + kPart), hn::LoadU(kFour, from)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Combine(kFloats, hn::LoadU(kFour, from + kPart), hn::LoadU(kFour, from));
#else
  static_assert(kLanes == 4 && kPart > 0);
  return hn::LoadU(kFour, from);
#endif
}

/// Four vectors of load_fours() as four of elements, a block per lane.
HWY_INLINE void transpose(Floats a, Floats b, Floats c, Floats d, Floats* elements) {
  const Floats ac_low = hn::InterleaveLower(kFloats, a, c);
  const Floats bd_low = hn::InterleaveLower(kFloats, b, d);
  const Floats ac_high = hn::InterleaveUpper(kFloats, a, c);
  const Floats bd_high = hn::InterleaveUpper(kFloats, b, d);
  elements[0] = hn::InterleaveLower(kFloats, ac_low, bd_low);
  elements[1] = hn::InterleaveUpper(kFloats, ac_low, bd_low);
  elements[2] = hn::InterleaveLower(kFloats, ac_high, bd_high);
  elements[3] = hn::InterleaveUpper(kFloats, ac_high, bd_high);
}

/// The largest magnitudes of kLanes blocks.
HWY_INLINE Floats largest_of(const float* blocks) {
  Floats fours[4], elements[4];
  for (std::size_t row = 0; row < 4; ++row) {
    fours[row] = hn::Abs(load_fours(blocks, row, 0));
    for (std::size_t i = 4; i < kNvfp4Block; i += 4)
      fours[row] = hn::Max(fours[row], hn::Abs(load_fours(blocks, row, i)));
  }
  transpose(fours[0], fours[1], fours[2], fours[3], elements);
  return hn::Max(hn::Max(elements[0], elements[1]), hn::Max(elements[2], elements[3]));
}

/// The magnitudes of kLanes blocks: values[i] has those of element i, a block per lane. Weights are
/// their own magnitudes.
struct Lanes {
  explicit HWY_INLINE Lanes(const float* blocks) {
    for (std::size_t i = 0; i < kNvfp4Block; i += 4) {
      transpose(hn::Abs(load_fours(blocks, 0, i)), hn::Abs(load_fours(blocks, 1, i)),
                hn::Abs(load_fours(blocks, 2, i)), hn::Abs(load_fours(blocks, 3, i)), values + i);
    }
  }

  Floats values[kNvfp4Block];
};

/// A code that may become that of each lane's block.
struct Candidate {
  explicit HWY_INLINE Candidate(Ints of)
      : code(of), value(e4m3_value(of)), reciprocal(hn::Div(hn::Set(kFloats, 1.0F), value)) {}

  Ints code;
  Floats value, reciprocal;
};

/// The square of the error of `w` in E2M1; kCuts where w may be 7 or more times the scale, which
/// rounding without a cut would give more than 6.
template <bool kCuts>
HWY_INLINE Floats square_of_rest(Floats w, const Candidate& scale) {
  Floats y = hn::Mul(w, scale.reciprocal);
  if constexpr (kCuts) y = hn::Min(y, hn::Set(kFloats, 6.0F));
  // 2^22 times y, by integers, and at least 1.5 x 2^22: a number whose last place is the step at y,
  // and which is even in steps where y is a tie. y is taken from it, not added: just below a power
  // of two, a sum would have the larger step of the next one.
  const Ints scaled = hn::Add(hn::BitCast(kInts, y), hn::Set(kInts, 22 << 23));
  const Floats unit = hn::BitCast(kFloats, hn::Max(scaled, hn::Set(kInts, 0x4AC00000)));
  const Floats q = hn::Sub(unit, hn::Sub(unit, y));
  // q x scale has six significant bits and is exact, so that fusing changes nothing.
  const Floats rest = hn::NegMulAdd(q, scale.value, w);
  return hn::Mul(rest, rest);
}

/// The weight of each value's square: the same for all, or its own.
struct Evenly {
  [[nodiscard]] static HWY_INLINE Floats weigh(std::size_t, Floats square) { return square; }
};
struct ByWeight {
  [[nodiscard]] HWY_INLINE Floats weigh(std::size_t i, Floats square) const {
    return hn::Mul(square, weights.values[i]);
  }
  Lanes weights;
};

template <bool kCuts, typename Weighing>
HWY_INLINE Floats error_of(const Lanes& w, const Weighing& by, const Candidate& scale) {
  const auto term = [&](std::size_t i)
                        HWY_ATTR { return by.weigh(i, square_of_rest<kCuts>(w.values[i], scale)); };
  Floats sum0 = term(0);
  Floats sum1 = term(1);
  Floats sum2 = term(2);
  Floats sum3 = term(3);
  for (std::size_t i = 4; i < kNvfp4Block; i += 4) {
    sum0 = hn::Add(sum0, term(i));
    sum1 = hn::Add(sum1, term(i + 1));
    sum2 = hn::Add(sum2, term(i + 2));
    sum3 = hn::Add(sum3, term(i + 3));
  }
  return hn::Add(hn::Add(sum0, sum2), hn::Add(sum1, sum3));
}

/// The best code so far of every lane, which is the amax code at first.
template <typename Weighing>
struct Best {
  HWY_INLINE Best(const Lanes& w, const Weighing& weighing, Ints first)
      : by(weighing),
        amax_code(first),
        code(first),
        error(error_of<true>(w, weighing, Candidate(first))) {}

  /// Codes above the amax code, from the lowest on; where it is the amax code, nothing changes.
  HWY_INLINE void consider_above(const Lanes& w, const Candidate& scale) {
    const Floats other = error_of<false>(w, by, scale);
    take(scale.code, other,
         hn::And(hn::RebindMask(kInts, hn::Lt(other, error)), hn::Gt(scale.code, amax_code)));
  }
  /// Codes below, which have been left for later, from the lowest on: they win ties against those
  /// above.
  HWY_INLINE void consider_below(const Lanes& w, const Candidate& scale) {
    const Floats other = error_of<true>(w, by, scale);
    const auto wins_tie =
        hn::And(hn::RebindMask(kInts, hn::Eq(other, error)), hn::Gt(code, amax_code));
    take(scale.code, other, hn::Or(hn::RebindMask(kInts, hn::Lt(other, error)), wins_tie));
  }
  HWY_INLINE void take(Ints other, Floats other_error, hn::Mask<decltype(kInts)> better) {
    error = hn::IfThenElse(hn::RebindMask(kFloats, better), other_error, error);
    code = hn::IfThenElse(better, other, code);
  }

  const Weighing& by;
  Ints amax_code, code;
  Floats error;
};

/// The last code that is worth a try. A scale that is twice another's never has a smaller error, so
/// long as no value is 7 or more times the smaller one: all its codes are codes of the smaller one,
/// too. That holds as rounded here: y is half as large and rounded alike, and as a tie times a
/// scale has few bits, no y lies beyond a tie that the value itself does not reach, so that no term
/// is larger. Normal codes that are eight apart are such scales; the smaller one is the amax code
/// or, for most blocks, the one below it.
HWY_INLINE Ints last_worth(Ints last, Ints amax_code, Floats w_amax, Ints below) {
  const Ints seven = hn::Set(kInts, 7);  // the last code that is not normal, too
  const auto fits = hn::Lt(hn::Mul(w_amax, Candidate(below).reciprocal), hn::Set(kFloats, 7.0F));
  const auto has_below = hn::And(hn::RebindMask(kInts, fits), hn::Gt(below, seven));
  const Ints worth = hn::Add(hn::IfThenElse(has_below, below, amax_code), seven);
  return hn::IfThenElse(hn::Gt(amax_code, seven), hn::Min(last, worth), last);
}

template <typename Weighing>
HWY_INLINE Ints search(const Rule& rule, const Nvfp4Blocks& in, const Weighing& by, Lanes& w,
                       Floats amax, Floats raw, Ints amax_code) {
  for (Floats& value : w.values) value = rule.in_units(value);
  const Floats w_amax = rule.in_units(amax);
  Best<Weighing> best(w, by, amax_code);
  const Ints one = hn::Set(kInts, 1);
  const Ints from_six = rule.code(hn::Mul(raw, hn::Set(kFloats, 1.5F)));
  if (in.search == ScaleSearch::kFourOverSix) {
    best.consider_above(w, Candidate(from_six));
    return best.code;
  }
  const Ints above =
      hn::IfThenElse(hn::Lt(amax_code, hn::Set(kInts, 16)), hn::Set(kInts, in.window.above_small),
                     hn::Set(kInts, in.window.above));
  const Ints first = hn::Max(hn::Sub(amax_code, hn::Set(kInts, in.window.below)), rule.lowest);
  const Ints last = last_worth(hn::Min(hn::Add(amax_code, above), hn::Set(kInts, kLargestCode)),
                               amax_code, w_amax, hn::Max(hn::Sub(amax_code, one), first));
  // The next code is known early, so that its reciprocal is there when it is wanted. A lane that
  // has reached its last code tries it again while others go on.
  const auto after = [one](const Candidate& scale, Ints end)
                         HWY_ATTR { return Candidate(hn::Min(hn::Add(scale.code, one), end)); };
  Candidate at(hn::Min(hn::Add(amax_code, one), last)), low(first);
  for (bool is_last = false; !is_last;) {
    const Candidate next = after(at, last);
    best.consider_above(w, at);
    is_last = hn::AllTrue(kInts, hn::Eq(at.code, last));
    at = next;
  }
  if (!hn::AllFalse(kInts, hn::Gt(from_six, last))) best.consider_above(w, Candidate(from_six));
  for (int i = 0; i < in.window.below; ++i) {
    const Candidate next = after(low, amax_code);
    best.consider_below(w, low);
    low = next;
  }
  return best.code;
}

/// kLanes blocks and their weights, which are null where there are none.
HWY_INLINE void choose_for_lanes(const Rule& rule, const Nvfp4Blocks& in, const float* values,
                                 const float* weights, std::uint8_t* codes, float* effective) {
  const Floats amax = largest_of(values);
  const Floats raw = rule.raw(amax);
  Ints code = rule.code(raw);
  if (in.search != ScaleSearch::kAmax) {
    Lanes lanes(values);
    code = weights == nullptr ? search(rule, in, Evenly{}, lanes, amax, raw, code)
                              : search(rule, in, ByWeight{Lanes(weights)}, lanes, amax, raw, code);
  }
  store_scales(rule, amax, code, codes, effective);
}

}  // namespace

void choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective) {
  const Rule rule(in);
  std::size_t b = 0;
  for (; b + kLanes <= in.n_blocks; b += kLanes) {
    choose_for_lanes(rule, in, in.values + b * kNvfp4Block,
                     in.weights == nullptr ? nullptr : in.weights + b * kNvfp4Block, codes + b,
                     effective + b);
  }
  if (b == in.n_blocks) return;
  // The rest, among blocks of zeros.
  const std::size_t n = in.n_blocks - b;
  std::array<float, kLanes * kNvfp4Block> some{}, some_weights{};
  std::copy_n(in.values + b * kNvfp4Block, n * kNvfp4Block, some.data());
  if (in.weights != nullptr)
    std::copy_n(in.weights + b * kNvfp4Block, n * kNvfp4Block, some_weights.data());
  std::array<std::uint8_t, kLanes> some_codes;
  std::array<float, kLanes> some_effective;
  choose_for_lanes(rule, in, some.data(), in.weights == nullptr ? nullptr : some_weights.data(),
                   some_codes.data(), some_effective.data());
  std::copy_n(some_codes.data(), n, codes + b);
  std::copy_n(some_effective.data(), n, effective + b);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(choose_nvfp4_scales);

using Block = std::array<float, kNvfp4Block>;

float error_of(const Block& w, const float* weights, int code) {
  const float v = formats::kE4m3Values[static_cast<std::size_t>(code)];
  const float reciprocal = 1.0F / v;
  std::array<float, 4> sums{};
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float q = kE2m1Magnitudes[e2m1_from_magnitude(w[i] * reciprocal)];
    const float rest = w[i] - q * v;
    float square = rest * rest;
    if (weights != nullptr) square *= weights[i];
    sums[i % 4] = i < 4 ? square : sums[i % 4] + square;
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

int code_of(float raw, const Nvfp4Blocks& in) {
  return std::clamp<int>(formats::e4m3_from_float(raw), in.lowest_code, formats::kE4m3Largest);
}

int choose(const float* values, const float* weights, const Nvfp4Blocks& in) {
  float amax = 0;
  for (std::size_t i = 0; i < kNvfp4Block; ++i) amax = std::max(amax, std::fabs(values[i]));
  if (amax == 0) return formats::e4m3_from_float(1.0F);
  const float raw = in.divides ? in.global * (amax / 6.0F) : amax / (6.0F * in.global);
  const int amax_code = code_of(raw, in);
  if (in.search == ScaleSearch::kAmax) return amax_code;

  Block w;
  for (std::size_t i = 0; i < kNvfp4Block; ++i) {
    const float magnitude = std::fabs(values[i]);
    w[i] = in.divides ? magnitude * in.global : magnitude / in.global;
  }
  int best = amax_code;
  float least = error_of(w, weights, amax_code);
  const auto consider = [&](int code) {
    const float error = error_of(w, weights, code);
    if (error < least) {
      least = error;
      best = code;
    }
  };
  if (in.search == ScaleSearch::kMse) {
    const int above = amax_code < 16 ? in.window.above_small : in.window.above;
    const int first = std::max<int>(amax_code - in.window.below, in.lowest_code);
    const int last = std::min<int>(amax_code + above, formats::kE4m3Largest);
    for (int code = first; code <= last; ++code) consider(code);
  }
  // Not below the window, since it is at least the amax code; tried last, it keeps the order.
  consider(code_of(raw * 1.5F, in));
  return best;
}

}  // namespace

void scalar::choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective) {
  for (std::size_t b = 0; b < in.n_blocks; ++b) {
    const float* weights = in.weights == nullptr ? nullptr : in.weights + b * kNvfp4Block;
    codes[b] = static_cast<std::uint8_t>(choose(in.values + b * kNvfp4Block, weights, in));
    effective[b] = nvfp4_effective_scale(codes[b], in.global, in.divides);
  }
}

float nvfp4_effective_scale(std::uint8_t code, float global, bool divides) {
  return divides ? formats::kE4m3Values[code] / global : formats::kE4m3Values[code] * global;
}

std::uint8_t nvfp4_lowest_code(float global, bool divides) {
  std::uint8_t code = 1;
  while (code < formats::kE4m3Largest && nvfp4_effective_scale(code, global, divides) == 0) ++code;
  return code;
}

void choose_nvfp4_scales(const Nvfp4Blocks& in, std::uint8_t* codes, float* effective) {
  if (in.n_blocks > 0) HWY_DYNAMIC_DISPATCH(choose_nvfp4_scales)(in, codes, effective);
}

}  // namespace ingot::quantize
#endif
