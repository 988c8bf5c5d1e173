// Products of activations and stored weights, in the lanes of dot_lanes.h.
//
// One to three rows of x (decoding): weights are used once, so they stay in registers between
// decoding and multiplication; four rows of w at a time share what is loaded of x and hide the
// latency of additions.
//
// More rows (prefill): 24 rows of w are decoded, 512 columns at a time, into a tile in the
// second-level cache and multiplied with up to 128 rows of x in register tiles of 4 x 6 dot
// products. The lanes of all of them wait in memory between one tile of columns and the next, which
// keeps their order.
//
// Multiplications and additions are not fused, so that every target gives the same bits.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "inference/kernels/matmul_task.h"
#include "inference/kernels/weight_value.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/matmul_simd.cc"
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/weight_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
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

/// Products of kN rows of w, from `row` on, with kM rows of x.
template <class Decoder, std::size_t kM, std::size_t kN>
HWY_INLINE void dot_rows(const MatmulTask& task, const typename Decoder::Shared& shared,
                         std::size_t row) {
  const WeightMatrix& w = task.w;
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
        constexpr std::size_t kTogether = std::min(kN, Decoder::kRowsTogether);
        HWY_UNROLL(4)
        for (std::size_t first = 0; first < kN; first += kTogether) {
          decltype(decoders[0].load(shared, k)) loaded[kTogether];
          HWY_UNROLL(4)
          for (std::size_t n = 0; n < kTogether; ++n) {
            fetch_ahead(next_rows + k / kAtOnce * kN * kLineBytes + (first + n) * kLineBytes);
            loaded[n] = decoders[first + n].load(shared, k);
          }
          HWY_UNROLL(4)
          for (std::size_t j = 0; j < Decoder::kVectors; ++j) {
            HWY_UNROLL(4)
            for (std::size_t n = 0; n < kTogether; ++n) {
              const Lanes weights = decoders[first + n].lanes(shared, loaded[n], j);
              HWY_UNROLL(4)
              for (std::size_t m = 0; m < kM; ++m) {
                add_product(load_lanes(x[m] + k + j * kDotLanes), weights, sums[first + n][m]);
              }
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

/// For a row of w that has no three others beside it: one row of x after the other, for the sake of
/// the compiler.
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
  const typename Decoder::Shared shared(task.e2m1_table);
  std::size_t n = begin;
  for (; n + 4 <= end; n += 4) dot_rows<Decoder, kM, 4>(task, shared, n);
  for (; n < end; ++n) dot_last_row<Decoder>(task, shared, n, kM);
}

/// Decodes columns [begin, end) of a row, `begin` a multiple of 16, to vectors `stride` floats
/// apart.
template <class Decoder>
HWY_INLINE void decode_columns(const MatmulTask& task, const typename Decoder::Shared& shared,
                               std::size_t row, Segment columns, float* out, std::size_t stride) {
  const WeightMatrix& w = task.w;
  Decoder decoder;
  decoder.open(w, row);
  for_each_segment<Decoder>(w, columns.begin, columns.end, [&](const Segment& segment) HWY_ATTR {
    std::size_t k = segment.begin;
    float* to = out + (k - columns.begin) / kDotLanes * stride;
    if (HWY_LIKELY(decoder.begin(segment.group))) {
      constexpr std::size_t kAtOnce = Decoder::kVectors * kDotLanes;
      for (; k + kAtOnce <= segment.end; k += kAtOnce) {
        const auto loaded = decoder.load(shared, k);
        HWY_UNROLL(4)
        for (std::size_t j = 0; j < Decoder::kVectors; ++j, to += stride) {
          store_lanes(decoder.lanes(shared, loaded, j), to);
        }
      }
      for (; Decoder::kVectors > 1 && k + kDotLanes <= segment.end; k += kDotLanes, to += stride) {
        store_lanes(decoder.sixteen(shared, k), to);
      }
    }
    for (; k < segment.end; k += kDotLanes, to += stride) {
      const std::size_t n = std::min(kDotLanes, segment.end - k);
      store_lanes(twin_lanes(w, row, k, n, task.rounding), to);
    }
  });
}

// Registers for 4 x 6 sums, or for half of them.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
constexpr std::size_t kRowsAtOnce = 4;
#else
constexpr std::size_t kRowsAtOnce = 2;
#endif

/// Adds products of kM rows of x, in vectors of kTileM rows, and kTileN rows of w to lanes
/// [kTileM, kTileN, 16], or sets them.
template <std::size_t kM>
HWY_INLINE void multiply_rows(const float* x, const float* w, std::size_t n_vectors, bool first,
                              float* lanes) {
  for (std::size_t p = 0; p < kParts; ++p) {
    const std::size_t offset = p * kVectorLanes;
    Floats sums[kM][kTileN];
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      HWY_UNROLL(6)
      for (std::size_t n = 0; n < kTileN; ++n) {
        sums[m][n] = first ? hn::Zero(kFloats)
                           : hn::LoadU(kFloats, lanes + (m * kTileN + n) * kDotLanes + offset);
      }
    }
    const float* from_x = x + offset;
    const float* from_w = w + offset;
    for (std::size_t v = 0; v < n_vectors; ++v) {
      Floats rows[kM];
      HWY_UNROLL(4)
      for (std::size_t m = 0; m < kM; ++m) rows[m] = hn::LoadU(kFloats, from_x + m * kDotLanes);
      HWY_UNROLL(6)
      for (std::size_t n = 0; n < kTileN; ++n) {
        const Floats weights = hn::LoadU(kFloats, from_w + n * kDotLanes);
        HWY_UNROLL(4)
        for (std::size_t m = 0; m < kM; ++m) {
          sums[m][n] = hn::Add(sums[m][n], hn::Mul(rows[m], weights));
        }
      }
      from_x += kTileM * kDotLanes;
      from_w += kTileN * kDotLanes;
    }
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      HWY_UNROLL(6)
      for (std::size_t n = 0; n < kTileN; ++n) {
        hn::StoreU(sums[m][n], kFloats, lanes + (m * kTileN + n) * kDotLanes + offset);
      }
    }
  }
}

HWY_NOINLINE void multiply_tile(const float* x, std::size_t rows, const float* w,
                                std::size_t n_vectors, bool first, float* lanes) {
  std::size_t m = 0;
  for (; m + kRowsAtOnce <= rows; m += kRowsAtOnce) {
    multiply_rows<kRowsAtOnce>(x + m * kDotLanes, w, n_vectors, first,
                               lanes + m * kTileN * kDotLanes);
  }
  for (; m < rows; ++m) {
    multiply_rows<1>(x + m * kDotLanes, w, n_vectors, first, lanes + m * kTileN * kDotLanes);
  }
}

/// Folds the lanes of a tile into y.
HWY_INLINE void store_tile(const float* lanes, MatrixView<float> y) {
  for (std::size_t n = 0; n < y.cols; ++n) {
    Lanes rows[kTileM];
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kTileM; ++m) {
      // Rows that are not there are taken for the first.
      const std::size_t row = m < y.rows ? m : 0;
      rows[m] = load_lanes(lanes + (row * kTileN + n) * kDotLanes);
    }
    alignas(16) float dots[kTileM];
    hn::Store(one_nan(kFourFloats, fold_four(rows[0], rows[1], rows[2], rows[3])), kFourFloats,
              dots);
    for (std::size_t m = 0; m < y.rows; ++m) y.row(m)[n] = dots[m];
  }
}

template <class Decoder>
HWY_NOINLINE void tile_run(const MatmulTask& task, std::size_t begin, std::size_t end) {
  constexpr std::size_t kTileFloats = kTileVectors * kTileN * kDotLanes;
  constexpr std::size_t kTileLanes = kTileM * kTileN * kDotLanes;
  constexpr std::size_t kPanelTilesN = kPanelN / kTileN;
  constexpr std::size_t kPanelTilesM = kPanelM / kTileM;
  struct Scratch {
    alignas(64) float weights[kPanelTilesN][kTileFloats];
    alignas(64) float lanes[kPanelTilesM][kPanelTilesN][kTileLanes];
  };
  const std::unique_ptr<Scratch> scratch(new Scratch);
  const typename Decoder::Shared shared(task.e2m1_table);
  const std::size_t rows = task.y.rows;
  for (std::size_t m0 = 0; m0 < rows; m0 += kPanelM) {
    const std::size_t m_end = std::min(m0 + kPanelM, rows);
    for (std::size_t n0 = begin; n0 < end; n0 += kPanelN) {
      const std::size_t n_end = std::min(n0 + kPanelN, end);
      const std::size_t n_tiles = (n_end - n0 + kTileN - 1) / kTileN;
      for (std::size_t v0 = 0; v0 < task.vectors; v0 += kTileVectors) {
        const std::size_t n_vectors = std::min(kTileVectors, task.vectors - v0);
        const Segment columns{v0 * kDotLanes, std::min((v0 + n_vectors) * kDotLanes, task.w.cols),
                              0};
        for (std::size_t n = n0; n < n0 + n_tiles * kTileN; ++n) {
          // The last tile repeats a row for those that are not there.
          float* out = scratch->weights[(n - n0) / kTileN] + (n - n0) % kTileN * kDotLanes;
          decode_columns<Decoder>(task, shared, std::min(n, n_end - 1), columns, out,
                                  kTileN * kDotLanes);
        }
        for (std::size_t m = m0; m < m_end; m += kTileM) {
          const float* x = task.x + (m / kTileM * task.vectors + v0) * kTileM * kDotLanes;
          for (std::size_t t = 0; t < n_tiles; ++t) {
            multiply_tile(x, std::min(kTileM, m_end - m), scratch->weights[t], n_vectors, v0 == 0,
                          scratch->lanes[(m - m0) / kTileM][t]);
          }
        }
      }
      for (std::size_t m = m0; m < m_end; m += kTileM) {
        for (std::size_t t = 0; t < n_tiles; ++t) {
          const std::size_t n = n0 + t * kTileN;
          store_tile(scratch->lanes[(m - m0) / kTileM][t], {.data = task.y.row(m) + n,
                                                            .rows = std::min(kTileM, m_end - m),
                                                            .cols = std::min(kTileN, n_end - n),
                                                            .stride = task.y.stride});
        }
      }
    }
  }
}

}  // namespace

bool uses_table(const WeightMatrix& w) {
  const bool pairs = w.scheme == formats::SchemeId::kNvfp4 || w.scheme == formats::SchemeId::kMxfp4;
  return kUsesE2m1Table && pairs && has_regular_groups(w);
}

void fill_table(const WeightMatrix& w, WeightRounding rounding, float* out) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  for (std::size_t code = 0; code < 256; ++code) {
    const float scale = ingot::inference::one_nan(w.scale_values[code]);
    if (rounding == WeightRounding::kBf16) {
      store_e2m1_values<true>(scale, out + 16 * code);
    } else {
      store_e2m1_values<false>(scale, out + 16 * code);
    }
  }
#else
  (void)w;
  (void)rounding;
  (void)out;
#endif
}

void run(const MatmulTask& task, std::size_t begin, std::size_t end) {
  with_decoder(task.w, task.rounding, [&](auto decoder) HWY_ATTR {
    using Decoder = decltype(decoder);
    switch (task.y.rows) {
      case 1:
        return dot_run<Decoder, 1>(task, begin, end);
      case 2:
        return dot_run<Decoder, 2>(task, begin, end);
      case 3:
        return dot_run<Decoder, 3>(task, begin, end);
      default:
        return tile_run<Decoder>(task, begin, end);
    }
  });
}

#else

bool uses_table(const WeightMatrix& /*w*/) {
  return false;
}

void fill_table(const WeightMatrix& /*w*/, WeightRounding /*rounding*/, float* /*out*/) {}

/// x is laid out for vectors, which the twin undoes.
void run(const MatmulTask& task, std::size_t begin, std::size_t end) {
  const std::size_t cols = task.w.cols;
  std::vector<float> rows(task.y.rows * cols);
  for (std::size_t m = 0; m < task.y.rows; ++m) {
    for (std::size_t k = 0; k < cols; ++k) {
      const std::size_t place =
          task.y.rows <= kMostDirectRows ? m * task.x_stride + k : tiled_place(task.vectors, m, k);
      rows[m * cols + k] = task.x[place];
    }
  }
  scalar::matmul({.data = rows.data(), .rows = task.y.rows, .cols = cols, .stride = cols},
                 task.w.row_range(begin, end - begin), task.rounding,
                 {.data = task.y.data + begin,
                  .rows = task.y.rows,
                  .cols = end - begin,
                  .stride = task.y.stride});
}

#endif
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::inference {
namespace {
HWY_EXPORT(uses_table);
HWY_EXPORT(fill_table);
HWY_EXPORT(run);
}  // namespace

bool wants_e2m1_table(const WeightMatrix& w) {
  return HWY_DYNAMIC_DISPATCH(uses_table)(w);
}

void fill_e2m1_table(const WeightMatrix& w, WeightRounding rounding, float* out) {
  HWY_DYNAMIC_DISPATCH(fill_table)(w, rounding, out);
}

void run_matmul(const MatmulTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run)(task, begin, end);
}

}  // namespace ingot::inference
#endif
