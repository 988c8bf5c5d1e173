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

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<float, kRowStep> kFloats;
constexpr hn::Rebind<std::uint32_t, decltype(kFloats)> kBits;
constexpr hn::Half<decltype(kFloats)> kHalves;
constexpr hn::Rebind<double, decltype(kHalves)> kDoubles;
using Floats = hn::Vec<decltype(kFloats)>;
using Doubles = hn::Vec<decltype(kDoubles)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);
constexpr std::size_t kVectors = kRowStep / kLanes;

/// The sums over some columns, in FP32.
struct Unit {
  HWY_INLINE Unit() {
    for (std::size_t k = 0; k < kVectors; ++k)
      error[k] = error2[k] = source2[k] = cross[k] = hn::Zero(kFloats);
  }

  Floats error[kVectors], error2[kVectors], source2[kVectors], cross[kVectors];
};

/// The same over a piece, in double.
struct Lanes {
  HWY_INLINE Lanes() {
    for (Doubles& vector : vectors) vector = hn::Zero(kDoubles);
  }
  HWY_INLINE void add(const Floats* unit) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      vectors[2 * k] =
          hn::Add(vectors[2 * k], hn::PromoteTo(kDoubles, hn::LowerHalf(kHalves, unit[k])));
      vectors[2 * k + 1] =
          hn::Add(vectors[2 * k + 1], hn::PromoteTo(kDoubles, hn::UpperHalf(kHalves, unit[k])));
    }
  }
  [[nodiscard]] HWY_INLINE double folded() const {
    std::array<double, kRowStep> lanes;
    for (std::size_t k = 0; k < 2 * kVectors; ++k)
      hn::StoreU(vectors[k], kDoubles, lanes.data() + k * (kLanes / 2));
    return fold_lanes(lanes.data());
  }

  Doubles vectors[2 * kVectors];
};

/// kEven: all steps are 1 (StepGrid::floor is above every code).
template <bool kEven>
class Piece {
 public:
  HWY_INLINE Piece(const StepGrid& grid, float max_relative)
      : floor_(hn::Set(kFloats, grid.floor)),
        top_(hn::Set(kFloats, grid.largest * (1 - 0x1p-12F))),
        max_error_(hn::Zero(kFloats)),
        filter_(hn::Set(kFloats, relative_filter(max_relative))),
        max_relative_(max_relative) {}

  /// Sixteen columns.
  HWY_INLINE void add(const float* source, const float* output, float inverse, float limit,
                      Unit& unit) {
    const Floats inverses = hn::Set(kFloats, inverse);
    const Floats limits = hn::Set(kFloats, limit);
    for (std::size_t k = 0; k < kVectors; ++k) {
      const Floats value = hn::LoadU(kFloats, source + k * kLanes);
      const Floats stored = hn::LoadU(kFloats, output + k * kLanes);
      const Floats error = hn::Sub(stored, value);
      unit.error[k] = hn::Add(unit.error[k], error);
      unit.error2[k] = hn::Add(unit.error2[k], hn::Mul(error, error));
      unit.source2[k] = hn::Add(unit.source2[k], hn::Mul(value, value));
      unit.cross[k] = hn::Add(unit.cross[k], hn::Mul(value, error));
      look_at(value, stored, error, inverses, limits);
    }
  }

  HWY_INLINE void end(RowSums& sums) const {
    sums.exact += exact_;
    sums.misrounded += misrounded_;
    sums.saturated += saturated_;
    sums.zeroed += zeroed_;
    sums.max_error = std::max(sums.max_error, hn::GetLane(hn::MaxOfLanes(kFloats, max_error_)));
    sums.max_relative = max_relative_;
  }

 private:
  HWY_INLINE void look_at(Floats value, Floats stored, Floats error, Floats inverse, Floats limit) {
    const Floats zero = hn::Zero(kFloats);
    const Floats distance = hn::Abs(error);
    const Floats magnitude = hn::Abs(value);
    const Floats size = hn::Abs(stored);
    max_error_ = hn::Max(max_error_, distance);
    const auto is_exact = hn::Eq(error, zero);
    exact_ += hn::CountTrue(kFloats, is_exact);
    zeroed_ += hn::CountTrue(kFloats, hn::AndNot(is_exact, hn::Eq(stored, zero)));
    Floats power = floor_;
    if constexpr (!kEven) {
      const Floats code = hn::Mul(hn::Min(magnitude, size), inverse);
      const Floats exponent = hn::And(code, hn::BitCast(kFloats, hn::Set(kBits, 0x7F800000U)));
      power = hn::Max(exponent, floor_);
    }
    const Floats most = hn::Mul(power, limit);
    const Floats least = hn::Min(most, hn::Mul(magnitude, filter_));
    if (HWY_LIKELY(hn::AllFalse(kFloats, hn::Gt(distance, least)))) return;
    divide(distance, magnitude);
    const auto is_far = hn::Gt(distance, most);
    const auto at_top = hn::And(hn::Ge(hn::Mul(size, inverse), top_), hn::Gt(magnitude, size));
    const auto same_sign = hn::Eq(hn::CopySign(magnitude, stored), value);
    const std::size_t saturated =
        hn::CountTrue(kFloats, hn::And(is_far, hn::And(at_top, same_sign)));
    saturated_ += saturated;
    misrounded_ += hn::CountTrue(kFloats, is_far) - saturated;
  }

  HWY_INLINE void divide(Floats distance, Floats magnitude) {
    const Floats least = hn::Set(kFloats, kLeastRelative);
    const Floats relative =
        hn::IfThenElseZero(hn::Ge(magnitude, least), hn::Div(distance, hn::Max(magnitude, least)));
    max_relative_ = std::max(max_relative_, hn::GetLane(hn::MaxOfLanes(kFloats, relative)));
    filter_ = hn::Set(kFloats, relative_filter(max_relative_));
  }

  Floats floor_, top_, max_error_, filter_;
  float max_relative_;
  std::size_t exact_ = 0, misrounded_ = 0, saturated_ = 0, zeroed_ = 0;
};

template <bool kEven>
HWY_INLINE void compare(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  Piece<kEven> all(grid, sums.max_relative);
  Lanes error, error2, source2, cross;
  const std::size_t whole = piece.n / kRowStep * kRowStep;
  for (std::size_t begin = 0; begin < piece.n; begin += kRowUnit) {
    const std::size_t end = std::min(begin + kRowUnit, whole);
    Unit unit;
    std::size_t c = begin;
    for (; c < end; c += kRowStep)
      all.add(piece.source + c, piece.output + c, piece.inverse[c / kRowStep],
              piece.limit[c / kRowStep], unit);
    if (c >= whole && c < std::min(begin + kRowUnit, piece.n)) {
      // The last columns, among zeros, which add only to exact sums.
      std::array<float, kRowStep> source{};
      std::array<float, kRowStep> output{};
      std::copy(piece.source + c, piece.source + piece.n, source.data());
      std::copy(piece.output + c, piece.output + piece.n, output.data());
      all.add(source.data(), output.data(), piece.inverse[c / kRowStep], piece.limit[c / kRowStep],
              unit);
      sums.exact -= c + kRowStep - piece.n;
    }
    error.add(unit.error);
    error2.add(unit.error2);
    source2.add(unit.source2);
    cross.add(unit.cross);
  }
  all.end(sums);
  sums.error += error.folded();
  sums.error2 += error2.folded();
  sums.source2 += source2.folded();
  sums.cross += cross.folded();
}

}  // namespace

void compare_piece(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  if (grid.floor > grid.largest) {
    compare<true>(piece, grid, sums);
  } else {
    compare<false>(piece, grid, sums);
  }
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::verify
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::verify {
namespace {
HWY_EXPORT(compare_piece);
}  // namespace

void compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  HWY_DYNAMIC_DISPATCH(compare_piece)(piece, grid, sums);
}

}  // namespace ingot::verify
#endif
