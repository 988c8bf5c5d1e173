// Products that use a decoded weight many times, which is worth decoding into memory.
//
// More than three rows of x (prefill): 24 rows of w are decoded, 512 columns at a time, into a
// tile in the second-level cache and multiplied with up to 128 rows of x in register tiles of 4 x 6
// dot products, in the lanes of dot_lanes.h. The lanes of all of them wait in memory between one
// tile of columns and the next, which keeps their order.
//
// A transposed matrix: sums down its columns. Rows are decoded, some at a time, into a panel (FP32
// ones are read in place) and multiplied in register tiles of rows of x by vectors of columns.
// Every sum runs over ascending rows, so tiles of any shape give the same bits.
//
// Multiplications and additions are not fused, so that every target gives the same bits.

#include <algorithm>
#include <cstddef>
#include <memory>

#include "inference/kernels/matmul_task.h"
#include "quantize/kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/matmul_tiles_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "inference/kernels/dot_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
namespace {

// Registers for 24 sums, or for half of them.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
constexpr std::size_t kRowsAtOnce = 4;
#else
constexpr std::size_t kRowsAtOnce = 2;
#endif

/// Decodes columns [begin, end) of a row, `begin` a multiple of 16, to vectors `stride` floats
/// apart.
template <class Decoder>
HWY_INLINE void decode_columns(const CodedMatrix& w, WeightRounding rounding,
                               const typename Decoder::Shared& shared, std::size_t row,
                               Segment columns, float* out, std::size_t stride) {
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
      store_lanes(twin_lanes(w, row, k, n, rounding), to);
    }
  });
}

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

// Kept from task to task: blocks of this size that come and go on many threads stay in the pools
// that the allocator has for each of them.
MatmulTiles* tiles_of_this_thread() {
  thread_local const std::unique_ptr<MatmulTiles> tiles(new MatmulTiles);
  return tiles.get();
}

template <class Decoder>
HWY_NOINLINE void tile_run(const MatmulTask& task, std::size_t begin, std::size_t end) {
  MatmulTiles* const scratch = tiles_of_this_thread();
  const typename Decoder::Shared shared(task.table);
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
          decode_columns<Decoder>(task.w, task.rounding, shared, std::min(n, n_end - 1), columns,
                                  out, kTileN * kDotLanes);
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

/// Rows of w that are decoded together.
constexpr std::size_t kPanelRows = 64;
constexpr std::size_t kTileColumns = 4;  // vectors
/// Some rows of w as FP32.
struct Panel {
  const float* values = nullptr;
  std::size_t stride = 0;
  std::size_t first = 0, rows = 0;  ///< number of the first row of w, and of rows
};

/// Adds to (or, for the first rows of w, sets) kVectors vectors of columns of kM rows of y.
template <std::size_t kM, std::size_t kVectors>
HWY_INLINE void add_tile(const TransposedTask& task, const Panel& panel, std::size_t m0,
                         std::size_t column, const float* values) {
  Floats sums[kM][kVectors];
  for (std::size_t m = 0; m < kM; ++m) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[m][v] = panel.first == 0
                       ? hn::Zero(kFloats)
                       : hn::LoadU(kFloats, task.y.row(m0 + m) + column + v * kVectorLanes);
    }
  }
  for (std::size_t j = 0; j < panel.rows; ++j) {
    Floats weights[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      weights[v] = hn::LoadU(kFloats, values + j * panel.stride + v * kVectorLanes);
    }
    for (std::size_t m = 0; m < kM; ++m) {
      const Floats factor = hn::Set(kFloats, task.x.row(m0 + m)[panel.first + j]);
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[m][v] = hn::Add(sums[m][v], hn::Mul(factor, weights[v]));
      }
    }
  }
  for (std::size_t m = 0; m < kM; ++m) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[m][v], kFloats, task.y.row(m0 + m) + column + v * kVectorLanes);
    }
  }
}

template <std::size_t kM>
HWY_INLINE void add_rows(const TransposedTask& task, const Panel& panel, std::size_t m0,
                         std::size_t begin, std::size_t end) {
  std::size_t c = begin;
  for (; c + kTileColumns * kVectorLanes <= end; c += kTileColumns * kVectorLanes) {
    add_tile<kM, kTileColumns>(task, panel, m0, c, panel.values + (c - begin));
  }
  for (; c + kVectorLanes <= end; c += kVectorLanes) {
    add_tile<kM, 1>(task, panel, m0, c, panel.values + (c - begin));
  }
  for (; c < end; ++c) {
    for (std::size_t m = m0; m < m0 + kM; ++m) {
      float sum = panel.first == 0 ? 0.0F : task.y.row(m)[c];
      for (std::size_t j = 0; j < panel.rows; ++j) {
        const float product =
            task.x.row(m)[panel.first + j] * panel.values[j * panel.stride + c - begin];
        sum = sum + product;
      }
      task.y.row(m)[c] = sum;
    }
  }
}

void add_panel(const TransposedTask& task, const Panel& panel, std::size_t begin, std::size_t end) {
  std::size_t m = 0;
  for (; m + kRowsAtOnce <= task.y.rows; m += kRowsAtOnce) {
    add_rows<kRowsAtOnce>(task, panel, m, begin, end);
  }
  for (; m < task.y.rows; ++m) add_rows<1>(task, panel, m, begin, end);
}

template <class Decoder>
HWY_NOINLINE void run_decoded(const TransposedTask& task, std::size_t begin, std::size_t end) {
  const std::size_t stride = (end - begin + kDotLanes - 1) / kDotLanes * kDotLanes;
  const auto scratch = std::make_unique_for_overwrite<float[]>(kPanelRows * stride);
  const typename Decoder::Shared shared(task.table);
  for (std::size_t first = 0; first < task.w.rows; first += kPanelRows) {
    const std::size_t n = std::min(kPanelRows, task.w.rows - first);
    for (std::size_t j = 0; j < n; ++j) {
      decode_columns<Decoder>(task.w, task.rounding, shared, first + j, {begin, end, 0},
                              scratch.get() + j * stride, kDotLanes);
    }
    add_panel(task, {.values = scratch.get(), .stride = stride, .first = first, .rows = n}, begin,
              end);
  }
}

/// FP32 rows are a panel already.
void run_in_place(const TransposedTask& task, std::size_t begin, std::size_t end) {
  const std::size_t stride = task.w.row_bytes / sizeof(float);
  const float* values = reinterpret_cast<const float*>(task.w.codes) + begin;
  for (std::size_t first = 0; first < task.w.rows; first += kPanelRows) {
    add_panel(task,
              {.values = values + first * stride,
               .stride = stride,
               .first = first,
               .rows = std::min(kPanelRows, task.w.rows - first)},
              begin, end);
  }
}

}  // namespace

void run_transposed(const TransposedTask& task, std::size_t begin, std::size_t end) {
  if (task.w.scheme == formats::SchemeId::kF32 && task.rounding == WeightRounding::kExact &&
      task.w.row_bytes % sizeof(float) == 0) {
    run_in_place(task, begin, end);
  } else {
    with_decoder(task.w, task.rounding,
                 [&](auto decoder) HWY_ATTR { run_decoded<decltype(decoder)>(task, begin, end); });
  }
  for (std::size_t m = 0; m < task.y.rows; ++m) {
    for (std::size_t c = begin; c < end; ++c) {
      task.y.row(m)[c] = ingot::inference::one_nan(task.y.row(m)[c]);
    }
  }
}

void run_tiles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  with_decoder(task.w, task.rounding,
               [&](auto decoder) HWY_ATTR { tile_run<decltype(decoder)>(task, begin, end); });
}

#else
using scalar::run_transposed;

void run_tiles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  scalar::run_matmul(task, begin, end);
}
#endif
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::inference {
namespace {
HWY_EXPORT(run_transposed);
HWY_EXPORT(run_tiles);
}  // namespace

void run_matmul_transposed(const TransposedTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run_transposed)(task, begin, end);
}

void run_matmul_tiles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run_tiles)(task, begin, end);
}

}  // namespace ingot::inference
#endif
