// Each sum is in a lane of its own, which takes its tokens in order.

#include <cstddef>

#include "verify/calibrate/moment_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "verify/calibrate/moment_sums_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::verify {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR || !HWY_HAVE_FLOAT64

using scalar::add_moments;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::CappedTag<double, kMomentGroup> kDoubles;
using Doubles = hn::Vec<decltype(kDoubles)>;
constexpr std::size_t kLanes = hn::MaxLanes(kDoubles);

// kRows rows of one panel of columns; as many sums as fit into registers.
template <std::size_t kRows>
HWY_INLINE void add_square(const double* HWY_RESTRICT rows, const double* HWY_RESTRICT columns,
                           std::size_t n_tokens, double* HWY_RESTRICT sums, std::size_t stride) {
  constexpr std::size_t kVectors = kMomentGroup / kLanes;
  Doubles totals[kRows][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v)
      totals[r][v] = hn::LoadU(kDoubles, sums + r * stride + v * kLanes);
  }
  for (std::size_t t = 0; t < n_tokens; ++t) {
    Doubles column[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v)
      column[v] = hn::LoadU(kDoubles, columns + t * kMomentGroup + v * kLanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      const Doubles row = hn::Set(kDoubles, rows[t * kMomentGroup + r]);
      for (std::size_t v = 0; v < kVectors; ++v)
        totals[r][v] = hn::MulAdd(row, column[v], totals[r][v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v)
      hn::StoreU(totals[r][v], kDoubles, sums + r * stride + v * kLanes);
  }
}

}  // namespace

void add_moments(const MomentBand& band) {
  constexpr std::size_t kRows = kLanes;  // 8 vectors of sums
  const std::size_t stride = band.n_panels * kMomentGroup;
  for (std::size_t panel = 0; panel < band.n_panels; ++panel) {
    for (std::size_t r = 0; r < kMomentGroup; r += kRows) {
      add_square<kRows>(band.rows + r, band.columns + panel * band.n_tokens * kMomentGroup,
                        band.n_tokens, band.sums + r * stride + panel * kMomentGroup, stride);
    }
  }
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::verify
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::verify {
HWY_EXPORT(add_moments);
void add_moments(const MomentBand& band) {
  HWY_DYNAMIC_DISPATCH(add_moments)(band);
}
}  // namespace ingot::verify
#endif
