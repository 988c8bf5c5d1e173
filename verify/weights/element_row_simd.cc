// Sixteen columns are as many vectors as it takes; each lane adds its columns in order, and
// products are rounded before they are added, so that every width of vector gives the same sums.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "verify/weights/element_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "verify/weights/element_row_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::verify {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void compare_piece(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  scalar::compare_row(piece, grid, sums);
}
using scalar::sum_same_words;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kRowStep> kFloats;
constexpr hn::Rebind<std::uint32_t, decltype(kFloats)> kBits;
constexpr hn::Rebind<std::int32_t, decltype(kFloats)> kInts;
using Floats = hn::Vec<decltype(kFloats)>;
using Counts = hn::Vec<decltype(kInts)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

/// How the steps of a grid grow: by powers of two; not at all; or it does not matter, as the output
/// is the source.
enum class Steps { kPowers, kEven, kSame };

/// A piece whose last columns, where they are fewer than sixteen, are in memory of their own, among
/// zeros, which add only to exact sums.
struct PaddedPiece {
  HWY_INLINE explicit PaddedPiece(const RowPiece& row)
      : piece(row), whole(row.n / kRowStep * kRowStep) {
    if (whole == row.n) return;
    last_source.fill(0);
    last_output.fill(0);
    std::copy(row.source + whole, row.source + row.n, last_source.data());
    std::copy(row.output + whole, row.output + row.n, last_output.data());
  }
  [[nodiscard]] HWY_INLINE const float* source(std::size_t c) const {
    return c < whole ? piece.source + c : last_source.data();
  }
  [[nodiscard]] HWY_INLINE const float* output(std::size_t c) const {
    return c < whole ? piece.output + c : last_output.data();
  }

  const RowPiece& piece;
  std::size_t whole;  ///< columns before the last ones
  std::array<float, kRowStep> last_source, last_output;
};

/// Sixteen columns' worth of one vector: by how much it may be off, at most.
template <Steps kSteps>
HWY_INLINE Floats most_of(Floats magnitude, Floats size, Floats floor, float inverse, float limit) {
  if constexpr (kSteps != Steps::kPowers) return hn::Set(kFloats, limit);
  const Floats code = hn::Mul(hn::Min(magnitude, size), hn::Set(kFloats, inverse));
  const Floats exponent = hn::And(code, hn::BitCast(kFloats, hn::Set(kBits, 0x7F800000U)));
  return hn::Mul(hn::Max(exponent, floor), hn::Set(kFloats, limit));
}

/// Counts values of a unit that are far from their sources, and finds the largest relative error.
template <Steps kSteps>
HWY_NOINLINE void look_again(const PaddedPiece& padded, const StepGrid& grid, std::size_t begin,
                             std::size_t end, std::size_t lane, RowSums& sums) {
  const Floats top = hn::Set(kFloats, grid.largest * (1 - 0x1p-12F));
  const Floats floor = hn::Set(kFloats, grid.floor);
  const Floats least = hn::Set(kFloats, kLeastRelative);
  for (std::size_t c = begin; c < end; c += kRowStep) {
    const Floats value = hn::LoadU(kFloats, padded.source(c) + lane);
    const Floats stored = hn::LoadU(kFloats, padded.output(c) + lane);
    const Floats distance = hn::Abs(hn::Sub(stored, value));
    const Floats magnitude = hn::Abs(value);
    const Floats size = hn::Abs(stored);
    const float inverse = padded.piece.inverse[c / kRowStep];
    const Floats most =
        most_of<kSteps>(magnitude, size, floor, inverse, padded.piece.limit[c / kRowStep]);
    const Floats filter = hn::Set(kFloats, relative_filter(sums.max_relative));
    if (hn::AllFalse(kFloats, hn::Gt(distance, hn::Min(most, hn::Mul(magnitude, filter)))))
      continue;
    const Floats relative =
        hn::IfThenElseZero(hn::Ge(magnitude, least), hn::Div(distance, hn::Max(magnitude, least)));
    sums.max_relative = std::max(sums.max_relative, hn::GetLane(hn::MaxOfLanes(kFloats, relative)));
    const auto is_far = hn::Gt(distance, most);
    const Floats code = hn::Mul(size, hn::Set(kFloats, inverse));
    const auto at_top = hn::And(hn::Ge(code, top), hn::Gt(magnitude, size));
    const auto same_sign = hn::Eq(hn::CopySign(magnitude, stored), value);
    const std::size_t saturated =
        hn::CountTrue(kFloats, hn::And(is_far, hn::And(at_top, same_sign)));
    sums.saturated += saturated;
    sums.misrounded += hn::CountTrue(kFloats, is_far) - saturated;
  }
}

/// Lanes of one sum over a piece.
template <typename Tag>
struct LanesOf {
  static constexpr hn::Half<Tag> kHalves{};
  static constexpr hn::Rebind<double, decltype(kHalves)> kDoubles{};
  using Doubles = hn::Vec<decltype(kDoubles)>;

  HWY_INLINE LanesOf() : low(hn::Zero(kDoubles)), high(hn::Zero(kDoubles)) {}
  HWY_INLINE void add(hn::Vec<Tag> unit) {
    low = hn::Add(low, hn::PromoteTo(kDoubles, hn::LowerHalf(kHalves, unit)));
    high = hn::Add(high, hn::PromoteTo(kDoubles, hn::UpperHalf(kHalves, unit)));
  }
  HWY_INLINE void store(double* lanes) const {
    hn::StoreU(low, kDoubles, lanes);
    hn::StoreU(high, kDoubles, lanes + hn::MaxLanes(Tag()) / 2);
  }

  Doubles low, high;
};
using Lanes = LanesOf<decltype(kFloats)>;

/// By lane: the sums of RowSums in double.
struct PieceLanes {
  std::array<double, kRowStep> error, error2, source2, cross;
};

/// The sums, largest errors and counts of one vector's lanes over a unit.
template <Steps kSteps>
struct Unit {
  HWY_INLINE explicit Unit(const StepGrid& grid, float max_relative)
      : floor(hn::Set(kFloats, grid.floor)),
        filter(hn::Set(kFloats, relative_filter(max_relative))),
        error(hn::Zero(kFloats)),
        error2(error),
        source2(error),
        cross(error),
        is_far(hn::Lt(error, error)) {}

  HWY_INLINE void add(const float* source_at, const float* output_at, float inverse, float limit,
                      Floats& max_error, Counts& exact, Counts& zeroed) {
    const Floats zero = hn::Zero(kFloats);
    const Floats value = hn::LoadU(kFloats, source_at);
    source2 = hn::Add(source2, hn::Mul(value, value));
    if constexpr (kSteps == Steps::kSame) return;
    const Floats stored = hn::LoadU(kFloats, output_at);
    const Floats difference = hn::Sub(stored, value);
    const Floats distance = hn::Abs(difference);
    const Floats magnitude = hn::Abs(value);
    error = hn::Add(error, difference);
    error2 = hn::Add(error2, hn::Mul(difference, difference));
    cross = hn::Add(cross, hn::Mul(value, difference));
    max_error = hn::Max(max_error, distance);
    const auto is_exact = hn::Eq(difference, zero);
    const auto is_zeroed = hn::AndNot(is_exact, hn::Eq(stored, zero));
    exact = hn::Sub(exact, hn::VecFromMask(kInts, hn::RebindMask(kInts, is_exact)));
    zeroed = hn::Sub(zeroed, hn::VecFromMask(kInts, hn::RebindMask(kInts, is_zeroed)));
    const Floats most = most_of<kSteps>(magnitude, hn::Abs(stored), floor, inverse, limit);
    is_far = hn::Or(is_far, hn::Gt(distance, hn::Min(most, hn::Mul(magnitude, filter))));
  }

  Floats floor, filter, error, error2, source2, cross;
  hn::Mask<decltype(kFloats)> is_far;  ///< any was
};

/// Adds the lanes from `lane` on, as many as a vector has. They are followed through the whole
/// piece, so that the sums stay in registers.
template <Steps kSteps>
HWY_INLINE void compare_lanes(const PaddedPiece& padded, const StepGrid& grid, std::size_t lane,
                              PieceLanes& lanes, RowSums& sums) {
  const RowPiece& piece = padded.piece;
  Lanes all_error, all_error2, all_source2, all_cross;
  Floats max_error = hn::Zero(kFloats);
  Counts exact = hn::Zero(kInts), zeroed = hn::Zero(kInts);
  for (std::size_t begin = 0; begin < piece.n; begin += kRowUnit) {
    Unit<kSteps> unit(grid, sums.max_relative);
    const float *source = piece.source + begin + lane, *output = piece.output + begin + lane;
    const float *inverse = piece.inverse + begin / kRowStep,
                *limit = piece.limit + begin / kRowStep;
    const std::size_t steps = (std::min(begin + kRowUnit, padded.whole) - begin) / kRowStep;
    for (std::size_t i = 0; i < steps; ++i) {
      unit.add(source + i * kRowStep, output + i * kRowStep, inverse[i], limit[i], max_error, exact,
               zeroed);
    }
    if (begin + kRowUnit > padded.whole && padded.whole < piece.n) {
      unit.add(padded.source(padded.whole) + lane, padded.output(padded.whole) + lane,
               inverse[steps], limit[steps], max_error, exact, zeroed);
    }
    all_source2.add(unit.source2);
    if constexpr (kSteps == Steps::kSame) continue;
    all_error.add(unit.error);
    all_error2.add(unit.error2);
    all_cross.add(unit.cross);
    if (HWY_UNLIKELY(!hn::AllFalse(kFloats, unit.is_far)))
      look_again<kSteps>(padded, grid, begin, std::min(begin + kRowUnit, piece.n), lane, sums);
  }
  all_source2.store(lanes.source2.data() + lane);
  if constexpr (kSteps == Steps::kSame) return;
  all_error.store(lanes.error.data() + lane);
  all_error2.store(lanes.error2.data() + lane);
  all_cross.store(lanes.cross.data() + lane);
  sums.max_error = std::max(sums.max_error, hn::GetLane(hn::MaxOfLanes(kFloats, max_error)));
  sums.exact += static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(kInts, exact)));
  sums.zeroed += static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(kInts, zeroed)));
}

template <Steps kSteps>
HWY_INLINE void compare(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  const PaddedPiece padded(piece);
  PieceLanes lanes;
  for (std::size_t lane = 0; lane < kRowStep; lane += kLanes)
    compare_lanes<kSteps>(padded, grid, lane, lanes, sums);
  sums.source2 += fold_lanes(lanes.source2.data());
  if constexpr (kSteps == Steps::kSame) {
    sums.exact += piece.n;
    return;
  }
  if (padded.whole < piece.n) sums.exact -= padded.whole + kRowStep - piece.n;
  sums.error += fold_lanes(lanes.error.data());
  sums.error2 += fold_lanes(lanes.error2.data());
  sums.cross += fold_lanes(lanes.cross.data());
}

}  // namespace

void compare_piece(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  if (piece.source == piece.output) {
    compare<Steps::kSame>(piece, grid, sums);
  } else if (grid.is_even()) {
    compare<Steps::kEven>(piece, grid, sums);
  } else {
    compare<Steps::kPowers>(piece, grid, sums);
  }
}

// A word of 32 bits holds two columns: an even lane in its lower half, the next lane in its upper.
bool sum_same_words(const std::byte* source, const std::byte* output, std::size_t n,
                    double& source2) {
  constexpr hn::CappedTag<float, kRowStep / 2> kPairs;
  constexpr hn::RebindToUnsigned<decltype(kPairs)> kWords;
  constexpr std::size_t kStepBytes = 2 * kRowStep, kUnitBytes = 2 * kRowUnit;
  const std::size_t whole = n / kRowStep * kStepBytes;
  std::array<std::byte, kStepBytes> last{}, last_output{};
  std::copy(source + whole, source + 2 * n, last.data());
  std::copy(output + whole, output + 2 * n, last_output.data());
  std::array<double, kRowStep / 2> even, odd;
  auto differs = hn::Zero(kWords);
  for (std::size_t pair = 0; pair < kRowStep / 2; pair += hn::MaxLanes(kPairs)) {
    const auto load = [&](const std::byte* step) HWY_ATTR {
      return hn::LoadU(kWords,
                       reinterpret_cast<const std::uint32_t*>(step + pair * sizeof(std::uint32_t)));
    };
    LanesOf<decltype(kPairs)> all_even, all_odd;
    for (std::size_t begin = 0; begin < 2 * n; begin += kUnitBytes) {
      auto unit_even = hn::Zero(kPairs), unit_odd = unit_even;
      const auto add = [&](const std::byte* step, const std::byte* output_step) HWY_ATTR {
        const auto both = load(step);
        differs = hn::Or(differs, hn::Xor(both, load(output_step)));
        const auto first = hn::BitCast(kPairs, hn::ShiftLeft<16>(both));
        const auto second = hn::BitCast(kPairs, hn::And(both, hn::Set(kWords, 0xFFFF0000U)));
        unit_even = hn::Add(unit_even, hn::Mul(first, first));
        unit_odd = hn::Add(unit_odd, hn::Mul(second, second));
      };
      const std::size_t end = std::min(begin + kUnitBytes, whole);
      for (std::size_t at = begin; at < end; at += kStepBytes) add(source + at, output + at);
      if (begin + kUnitBytes > whole) add(last.data(), last_output.data());
      all_even.add(unit_even);
      all_odd.add(unit_odd);
    }
    all_even.store(even.data() + pair);
    all_odd.store(odd.data() + pair);
  }
  std::array<double, kRowStep> lanes;
  for (std::size_t i = 0; i < kRowStep; ++i) lanes[i] = i % 2 == 0 ? even[i / 2] : odd[i / 2];
  source2 = fold_lanes(lanes.data());
  return hn::AllTrue(kWords, hn::Eq(differs, hn::Zero(kWords)));
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::verify
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::verify {
namespace {
HWY_EXPORT(compare_piece);
HWY_EXPORT(sum_same_words);
}  // namespace

void compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  HWY_DYNAMIC_DISPATCH(compare_piece)(piece, grid, sums);
}

bool sum_same_words(const std::byte* source, const std::byte* output, std::size_t n,
                    double& source2) {
  return HWY_DYNAMIC_DISPATCH(sum_same_words)(source, output, n, source2);
}

}  // namespace ingot::verify
#endif
