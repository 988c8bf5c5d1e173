// Products of one to three rows of x (decoding) and stored weights, in the lanes of dot_lanes.h:
// weights are used once, so they stay in registers between decoding and multiplication; four rows
// of w at a time share what is loaded of x and hide the latency of additions.
//
// Multiplications and additions are not fused, so that every target gives the same bits.
//
// Every decoder is compiled for three numbers of rows and for each target, which took 40 s of one
// processor in one file: matmul_simd.cc, matmul_bytes_simd.cc and matmul_nibbles_simd.cc hold a
// family of decoders each.

// Per-target include guard.
#if defined(INGOT_INFERENCE_KERNELS_ROW_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_ROW_DOTS_INL_H_
#undef INGOT_INFERENCE_KERNELS_ROW_DOTS_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_ROW_DOTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "inference/kernels/dot_lanes-inl.h"
#include "inference/kernels/matmul_task.h"
#include "quantize/kernels/codes.h"

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
namespace {

template <std::size_t kN, std::size_t kM, class Visit>
HWY_INLINE void for_each_sum(const Visit& visit) {
  HWY_UNROLL(4)
  for (std::size_t n = 0; n < kN; ++n) {
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) visit(n, m);
  }
}

/// Adds what whole lines leave of a segment, or all of it where the decoder cannot work, to the
/// lanes [kM, 16] of one row of w.
template <class Decoder, std::size_t kM>
HWY_NOINLINE void add_rest(const MatmulTask& task, const typename Decoder::Shared& shared,
                           std::size_t row, Segment rest, float* lanes) {
  Decoder decoder;
  decoder.open(task.w, row);
  const bool works = decoder.begin(rest.group);
  for (std::size_t k = rest.begin; k < rest.end; k += kDotLanes) {
    const std::size_t n = std::min(kDotLanes, rest.end - k);
    const Lanes weights = works && n == kDotLanes ? decoder.sixteen(shared, k)
                                                  : twin_lanes(task.w, row, k, n, task.rounding);
    for (std::size_t m = 0; m < kM; ++m) {
      Lanes sum = load_lanes(lanes + m * kDotLanes);
      add_product(load_lanes(task.x + m * task.x_stride + k), weights, sum);
      store_lanes(sum, lanes + m * kDotLanes);
    }
  }
}

/// Computes the products of kN rows of w, from `row` on, with kM rows of x.
template <class Decoder, std::size_t kM, std::size_t kN>
HWY_INLINE void dot_rows(const MatmulTask& task, const typename Decoder::Shared& shared,
                         std::size_t row) {
  const CodedMatrix& w = task.w;
  Decoder decoders[kN];
  Lanes sums[kN][kM];
  HWY_UNROLL(4)
  for (std::size_t n = 0; n < kN; ++n) {
    decoders[n].open(w, row + n);
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) sums[n][m] = zero_lanes();
  }
  const float* x[kM];
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) x[m] = task.x + m * task.x_stride;

  const auto* next_rows =
      reinterpret_cast<const std::byte*>(decoders[0].line(0)) + kN * w.row_bytes;

  for_each_segment<Decoder>(w, 0, w.cols, [&](const Segment& segment) HWY_ATTR {
    std::size_t k = segment.begin;
    bool works = true;
    HWY_UNROLL(4)
    for (std::size_t n = 0; n < kN; ++n) works = decoders[n].begin(segment.group) && works;
    if (HWY_LIKELY(works)) {
      constexpr std::size_t kAtOnce = Decoder::kVectors * kDotLanes;
      for (; k + kAtOnce <= segment.end; k += kAtOnce) {
        decltype(decoders[0].load(shared, k)) loaded[kN];
        HWY_UNROLL(4)
        for (std::size_t n = 0; n < kN; ++n) {
          fetch_ahead(next_rows + k / kAtOnce * kN * kLineBytes + n * kLineBytes);
          loaded[n] = decoders[n].load(shared, k);
        }
        HWY_UNROLL(4)
        for (std::size_t j = 0; j < Decoder::kVectors; ++j) {
          HWY_UNROLL(4)
          for (std::size_t n = 0; n < kN; ++n) {
            const Lanes weights = decoders[n].lanes(shared, loaded[n], j);
            HWY_UNROLL(4)
            for (std::size_t m = 0; m < kM; ++m) {
              add_product(load_lanes(x[m] + k + j * kDotLanes), weights, sums[n][m]);
            }
          }
        }
      }
    }
    if (HWY_UNLIKELY(k < segment.end)) {
      // Through memory, so that the loop above keeps its registers to itself.
      alignas(64) float rest[kN][kM][kDotLanes];
      for_each_sum<kN, kM>([&](std::size_t n, std::size_t m)
                               HWY_ATTR { store_lanes(sums[n][m], rest[n][m]); });
      for (std::size_t n = 0; n < kN; ++n) {
        add_rest<Decoder, kM>(task, shared, row + n, {k, segment.end, segment.group}, rest[n][0]);
      }
      for_each_sum<kN, kM>([&](std::size_t n, std::size_t m)
                               HWY_ATTR { sums[n][m] = load_lanes(rest[n][m]); });
    }
  });

  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    Lanes four[4];
    HWY_UNROLL(4)
    for (std::size_t n = 0; n < 4; ++n) {
      four[n] = sums[n < kN ? n : 0][m];
    }
    const FourFloats dots = one_nan(kFourFloats, fold_four(four[0], four[1], four[2], four[3]));
    float* y = task.y.row(m) + row;
    if constexpr (kN == 4) {
      hn::StoreU(dots, kFourFloats, y);
    } else {
      static_assert(kN == 1);
      *y = hn::GetLane(dots);
    }
  }
}

/// Computes the products of a row of w that is not one of four: one row of x after the other, for
/// the sake of the compiler.
template <class Decoder>
HWY_NOINLINE void dot_last_row(MatmulTask task, const typename Decoder::Shared& shared,
                               std::size_t row, std::size_t n_x) {
  for (std::size_t m = 0; m < n_x; ++m) {
    dot_rows<Decoder, 1, 1>(task, shared, row);
    task.x += task.x_stride;
    task.y.data += task.y.stride;
  }
}

template <class Decoder, std::size_t kM>
HWY_NOINLINE void dot_run(const MatmulTask& task, std::size_t begin, std::size_t end) {
  const typename Decoder::Shared shared(task.table);
  std::size_t n = begin;
  for (; n + 4 <= end; n += 4) dot_rows<Decoder, kM, 4>(task, shared, n);
  for (; n < end; ++n) dot_last_row<Decoder>(task, shared, n, kM);
}

/// Columns [begin, end) of y for up to kMostDirectRows rows.
template <class Decoder>
HWY_INLINE void dot_columns(const MatmulTask& task, std::size_t begin, std::size_t end) {
  if (task.y.rows == 1) return dot_run<Decoder, 1>(task, begin, end);
  if (task.y.rows == 2) return dot_run<Decoder, 2>(task, begin, end);
  dot_run<Decoder, kMostDirectRows>(task, begin, end);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
