// Steps of error feedback: of Cholesky's factorization in double, and of columns of weights in
// FP32, whose rows lie in the lanes of vectors, so that lanes are never added to each other and the
// width of a vector changes no bit. Products and sums are rounded apart: a fused step would give
// other bits where a target has none.

#include <cstddef>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/feedback_steps.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/feedback_steps_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR || !HWY_HAVE_FLOAT64 || HWY_HAVE_SCALABLE

using scalar::carry_errors;
using scalar::solve_block;
using scalar::subtract_product;
using scalar::take_errors;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<double, 8> kDoubles;
using Doubles = hn::Vec<decltype(kDoubles)>;
constexpr std::size_t kDoubleLanes = hn::MaxLanes(kDoubles);
constexpr std::size_t kSide = kFactorBlock;

template <typename Tag, typename Value>
HWY_INLINE void store_pair(Tag tag, Value* at, hn::Vec<Tag> first, hn::Vec<Tag> second) {
  hn::StoreU(first, tag, at);
  hn::StoreU(second, tag, at + hn::MaxLanes(tag));
}

/// Four rows of the result, two vectors wide: as many sums as hide the latency of one.
HWY_INLINE void subtract_tile(const double* a, const double* b, double* c) {
  const auto load = [c](std::size_t row, std::size_t part) HWY_ATTR {
    return hn::LoadU(kDoubles, c + row * kSide + part * kDoubleLanes);
  };
  Doubles c00 = load(0, 0), c01 = load(0, 1), c10 = load(1, 0), c11 = load(1, 1);
  Doubles c20 = load(2, 0), c21 = load(2, 1), c30 = load(3, 0), c31 = load(3, 1);
  for (std::size_t m = 0; m < kSide; ++m) {
    const Doubles b0 = hn::LoadU(kDoubles, b + m * kSide);
    const Doubles b1 = hn::LoadU(kDoubles, b + m * kSide + kDoubleLanes);
    Doubles factor = hn::Set(kDoubles, a[m]);
    c00 = hn::Sub(c00, hn::Mul(factor, b0));
    c01 = hn::Sub(c01, hn::Mul(factor, b1));
    factor = hn::Set(kDoubles, a[kSide + m]);
    c10 = hn::Sub(c10, hn::Mul(factor, b0));
    c11 = hn::Sub(c11, hn::Mul(factor, b1));
    factor = hn::Set(kDoubles, a[2 * kSide + m]);
    c20 = hn::Sub(c20, hn::Mul(factor, b0));
    c21 = hn::Sub(c21, hn::Mul(factor, b1));
    factor = hn::Set(kDoubles, a[3 * kSide + m]);
    c30 = hn::Sub(c30, hn::Mul(factor, b0));
    c31 = hn::Sub(c31, hn::Mul(factor, b1));
  }
  store_pair(kDoubles, c, c00, c01);
  store_pair(kDoubles, c + kSide, c10, c11);
  store_pair(kDoubles, c + 2 * kSide, c20, c21);
  store_pair(kDoubles, c + 3 * kSide, c30, c31);
}

}  // namespace

void subtract_product(const double* a, const double* b, double* c) {
  for (std::size_t i = 0; i < kSide; i += 4) {
    for (std::size_t k = 0; k < kSide; k += 2 * kDoubleLanes)
      subtract_tile(a + i * kSide, b + k, c + i * kSide + k);
  }
}

void solve_block(const double* lower, double* x) {
  for (std::size_t k = 0; k < kSide; ++k) {
    double* solved = x + k * kSide;
    const Doubles pivot = hn::Set(kDoubles, lower[k * kSide + k]);
    for (std::size_t i = 0; i < kSide; i += kDoubleLanes)
      hn::StoreU(hn::Div(hn::LoadU(kDoubles, solved + i), pivot), kDoubles, solved + i);
    for (std::size_t l = k + 1; l < kSide; ++l) {
      const Doubles factor = hn::Set(kDoubles, lower[l * kSide + k]);
      double* rest = x + l * kSide;
      for (std::size_t i = 0; i < kSide; i += kDoubleLanes) {
        const Doubles product = hn::Mul(hn::LoadU(kDoubles, solved + i), factor);
        hn::StoreU(hn::Sub(hn::LoadU(kDoubles, rest + i), product), kDoubles, rest + i);
      }
    }
  }
}

namespace {

constexpr hn::CappedTag<float, kCarryRows / 2> kFloats;
constexpr hn::RebindToUnsigned<decltype(kFloats)> kWords;
using Floats = hn::Vec<decltype(kFloats)>;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);

/// The values of the codes nearest to quotients, by the additions of code_encode_simd.cc.
HWY_INLINE Floats nearest_integer(Floats quotient, Floats zero) {
  const Floats most = hn::Sub(hn::Set(kFloats, Int4::value(15, 0)), zero);
  const Floats within = hn::Max(hn::Min(quotient, most), hn::Neg(zero));
  const Floats unit = hn::Set(kFloats, 0x1.8p23F);
  return hn::Sub(hn::Add(within, unit), unit);
}
HWY_INLINE Floats nearest_e2m1(Floats value, Floats quotient) {
  const Floats magnitude = hn::Min(hn::Abs(quotient), hn::Set(kFloats, 6.0F));
  const auto own = hn::And(hn::BitCast(kWords, magnitude), hn::Set(kWords, 0x7F800000U));
  const Floats power = hn::Max(hn::BitCast(kFloats, own), hn::Set(kFloats, 1.0F));
  const Floats unit = hn::Mul(power, hn::Set(kFloats, 0x1p22F));
  const Floats rounded = hn::Sub(hn::Add(magnitude, unit), unit);
  return hn::IfThenElse(hn::Lt(value, hn::Zero(kFloats)), hn::Neg(rounded), rounded);
}

template <bool kIsInteger>
HWY_INLINE void take(const ColumnAtTurn& in) {
  for (std::size_t r = 0; r < in.rows; r += kLanes) {
    const Floats value = hn::LoadU(kFloats, in.values + r);
    const Floats scale = hn::LoadU(kFloats, in.scales + r);
    const Floats quotient = hn::Div(value, scale);
    Floats code;
    if constexpr (kIsInteger) {
      code = nearest_integer(quotient, hn::LoadU(kFloats, in.zeros + r));
    } else {
      code = nearest_e2m1(value, quotient);
    }
    const Floats weight = hn::LoadU(kFloats, in.errors + r);
    hn::StoreU(hn::Sub(weight, hn::Mul(code, scale)), kFloats, in.errors + r);
  }
}

/// Four targets, two vectors of rows: as many sums as hide the latency of one.
HWY_INLINE void carry_tile(const CarriedErrors& in, std::size_t k, std::size_t r) {
  float* at = in.columns + k * in.rows + r;
  const auto load = [&](std::size_t target, std::size_t part) HWY_ATTR {
    return hn::LoadU(kFloats, at + target * in.rows + part * kLanes);
  };
  Floats c00 = load(0, 0), c01 = load(0, 1), c10 = load(1, 0), c11 = load(1, 1);
  Floats c20 = load(2, 0), c21 = load(2, 1), c30 = load(3, 0), c31 = load(3, 1);
  for (std::size_t i = in.end; i-- > in.first;) {
    const Floats e0 = hn::LoadU(kFloats, in.errors + i * in.rows + r);
    const Floats e1 = hn::LoadU(kFloats, in.errors + i * in.rows + r + kLanes);
    const float* factors = in.factor + i * kFactorBlock + k;
    Floats factor = hn::Set(kFloats, factors[0]);
    c00 = hn::Add(c00, hn::Mul(factor, e0));
    c01 = hn::Add(c01, hn::Mul(factor, e1));
    factor = hn::Set(kFloats, factors[1]);
    c10 = hn::Add(c10, hn::Mul(factor, e0));
    c11 = hn::Add(c11, hn::Mul(factor, e1));
    factor = hn::Set(kFloats, factors[2]);
    c20 = hn::Add(c20, hn::Mul(factor, e0));
    c21 = hn::Add(c21, hn::Mul(factor, e1));
    factor = hn::Set(kFloats, factors[3]);
    c30 = hn::Add(c30, hn::Mul(factor, e0));
    c31 = hn::Add(c31, hn::Mul(factor, e1));
  }
  store_pair(kFloats, at, c00, c01);
  store_pair(kFloats, at + in.rows, c10, c11);
  store_pair(kFloats, at + 2 * in.rows, c20, c21);
  store_pair(kFloats, at + 3 * in.rows, c30, c31);
}

HWY_INLINE void carry_to_one(const CarriedErrors& in, std::size_t k) {
  for (std::size_t r = 0; r < in.rows; r += kLanes) {
    Floats sum = hn::LoadU(kFloats, in.columns + k * in.rows + r);
    for (std::size_t i = in.end; i-- > in.first;) {
      const Floats factor = hn::Set(kFloats, in.factor[i * kFactorBlock + k]);
      sum = hn::Add(sum, hn::Mul(factor, hn::LoadU(kFloats, in.errors + i * in.rows + r)));
    }
    hn::StoreU(sum, kFloats, in.columns + k * in.rows + r);
  }
}

}  // namespace

void take_errors(const ColumnAtTurn& column) {
  column.kind == formats::CodeKind::kInt4 ? take<true>(column) : take<false>(column);
}

void carry_errors(const CarriedErrors& carried) {
  std::size_t k = 0;
  for (; k + 4 <= carried.targets; k += 4) {
    for (std::size_t r = 0; r < carried.rows; r += 2 * kLanes) carry_tile(carried, k, r);
  }
  for (; k < carried.targets; ++k) carry_to_one(carried, k);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(carry_errors);
HWY_EXPORT(solve_block);
HWY_EXPORT(subtract_product);
HWY_EXPORT(take_errors);
}  // namespace

void scalar::subtract_product(const double* a, const double* b, double* c) {
  for (std::size_t i = 0; i < kFactorBlock; ++i) {
    for (std::size_t m = 0; m < kFactorBlock; ++m) {
      for (std::size_t k = 0; k < kFactorBlock; ++k)
        c[i * kFactorBlock + k] -= a[i * kFactorBlock + m] * b[m * kFactorBlock + k];
    }
  }
}

void scalar::solve_block(const double* lower, double* x) {
  for (std::size_t k = 0; k < kFactorBlock; ++k) {
    for (std::size_t i = 0; i < kFactorBlock; ++i) {
      double value = x[k * kFactorBlock + i];
      for (std::size_t m = 0; m < k; ++m)
        value -= x[m * kFactorBlock + i] * lower[k * kFactorBlock + m];
      x[k * kFactorBlock + i] = value / lower[k * kFactorBlock + k];
    }
  }
}

void subtract_product(const double* a, const double* b, double* c) {
  HWY_DYNAMIC_DISPATCH(subtract_product)(a, b, c);
}

void solve_block(const double* lower, double* x) {
  HWY_DYNAMIC_DISPATCH(solve_block)(lower, x);
}

void scalar::take_errors(const ColumnAtTurn& column) {
  with_code(column.kind, [&](auto code) {
    for (std::size_t r = 0; r < column.rows; ++r) {
      const float value = column.values[r], scale = column.scales[r];
      if constexpr (code.kHasZero) {
        const auto zero = static_cast<std::uint8_t>(column.zeros[r]);
        column.errors[r] -= code.value(code.nearest(value, value / scale, zero), zero) * scale;
      } else {
        column.errors[r] -= code.value(code.nearest(value, value / scale)) * scale;
      }
    }
  });
}

void scalar::carry_errors(const CarriedErrors& carried) {
  for (std::size_t k = 0; k < carried.targets; ++k) {
    for (std::size_t r = 0; r < carried.rows; ++r) {
      float& column = carried.columns[k * carried.rows + r];
      for (std::size_t i = carried.end; i-- > carried.first;)
        column += carried.factor[i * kFactorBlock + k] * carried.errors[i * carried.rows + r];
    }
  }
}

void take_errors(const ColumnAtTurn& column) {
  INGOT_CHECK(column.rows % kCarryRows == 0);
  INGOT_CHECK(column.kind == formats::CodeKind::kE2m1 || column.kind == formats::CodeKind::kInt4);
  HWY_DYNAMIC_DISPATCH(take_errors)(column);
}

void carry_errors(const CarriedErrors& carried) {
  INGOT_CHECK(carried.rows % kCarryRows == 0 && carried.end <= kFactorBlock);
  HWY_DYNAMIC_DISPATCH(carry_errors)(carried);
}

}  // namespace ingot::quantize
#endif
