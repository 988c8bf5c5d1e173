// Sums down the columns of a stored matrix: rows are decoded, some at a time, into a panel (FP32
// ones are read where they stand) and multiplied in register tiles of rows of x by vectors of
// columns. Every sum runs over ascending rows, so tiles of any shape give the same bits.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "inference/kernels/matmul_task.h"
#include "inference/kernels/weight_value.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/matmul_transposed_simd.cc"
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "inference/kernels/lanes-inl.h"
#include "inference/kernels/weight_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
namespace {

/// Rows of w that are decoded together.
constexpr std::size_t kPanelRows = 64;
constexpr std::size_t kTileColumns = 4;  // vectors
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
constexpr std::size_t kTileRows = 4;
#else
constexpr std::size_t kTileRows = 2;
#endif

/// Some rows of w as FP32.
struct Panel {
  const float* values = nullptr;
  std::size_t stride = 0;
  std::size_t first = 0, rows = 0;  ///< of w
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
  for (; m + kTileRows <= task.y.rows; m += kTileRows) {
    add_rows<kTileRows>(task, panel, m, begin, end);
  }
  for (; m < task.y.rows; ++m) add_rows<1>(task, panel, m, begin, end);
}

/// Columns [begin, end) of a row, `begin` a multiple of 16, to `out`, which has room for vectors.
template <class Decoder>
HWY_INLINE void decode(const TransposedTask& task, const typename Decoder::Shared& shared,
                       std::size_t row, std::size_t begin, std::size_t end, float* out) {
  Decoder decoder;
  decoder.open(task.w, row);
  for_each_segment<Decoder>(task.w, begin, end, [&](const Segment& segment) HWY_ATTR {
    std::size_t k = segment.begin;
    if (HWY_LIKELY(decoder.begin(segment.group))) {
      for (; k + kDotLanes <= segment.end; k += kDotLanes) {
        store_lanes(decoder.sixteen(shared, k), out + (k - begin));
      }
    }
    for (; k < segment.end; k += kDotLanes) {
      const std::size_t n = std::min(kDotLanes, segment.end - k);
      store_lanes(twin_lanes(task.w, row, k, n, task.rounding), out + (k - begin));
    }
  });
}

template <class Decoder>
HWY_NOINLINE void run_decoded(const TransposedTask& task, std::size_t begin, std::size_t end) {
  const std::size_t stride = (end - begin + kDotLanes - 1) / kDotLanes * kDotLanes;
  const auto scratch = std::make_unique_for_overwrite<float[]>(kPanelRows * stride);
  const typename Decoder::Shared shared(task.e2m1_table);
  for (std::size_t first = 0; first < task.w.rows; first += kPanelRows) {
    const std::size_t n = std::min(kPanelRows, task.w.rows - first);
    for (std::size_t j = 0; j < n; ++j) {
      decode<Decoder>(task, shared, first + j, begin, end, scratch.get() + j * stride);
    }
    add_panel(task, {.values = scratch.get(), .stride = stride, .first = first, .rows = n}, begin,
              end);
  }
}

/// FP32 rows are a panel as they stand.
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

#else

void run_transposed(const TransposedTask& task, std::size_t begin, std::size_t end) {
  scalar::run_transposed(task, begin, end);
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
}  // namespace

void run_matmul_transposed(const TransposedTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run_transposed)(task, begin, end);
}

}  // namespace ingot::inference
#endif
