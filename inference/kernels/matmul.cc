#include "inference/kernels/matmul.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "inference/kernels/matmul_task.h"
#include "quantize/scheme.h"

namespace ingot::inference {
namespace {

/// Products below which a second thread costs more than it saves.
constexpr std::size_t kProductsPerThread = std::size_t{1} << 18;

/// True if rounding the weights to BF16 changes none of them: codes of at most eight significant
/// bits under scales that are powers of two, far from the ends of the range.
bool is_exact_in_bf16(const CodedMatrix& w) {
  if (w.scales.empty() || w.rows == 0 || w.cols == 0) return w.scheme == formats::SchemeId::kBf16;
  const std::size_t first = w.group(0, 0), last = w.group(w.rows - 1, w.cols - 1);
  return std::ranges::all_of(w.scales.subspan(first, last + 1 - first), [](float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return (bits & 0x7FFFFFU) == 0 && scale > 0x1p-100F && scale < 0x1p100F;
  });
}

/// `n` values as vectors of sixteen, `stride` floats apart, the last one padded with zeros.
void lay_out(const float* from, std::size_t n, float* to, std::size_t stride) {
  for (std::size_t k = 0; k < n; k += kDotLanes, to += stride) {
    const std::size_t here = std::min(kDotLanes, n - k);
    if (here < kDotLanes) std::fill_n(to, kDotLanes, 0.0F);
    for (std::size_t i = 0; i < here; ++i) to[i] = from[k + i];
  }
}

/// Gives the task x in the order that the kernels want. Returns memory for it where x has another
/// order.
std::unique_ptr<float[]> lay_out(MatrixView<const float> x, std::size_t threads, MatmulTask& task) {
  task.vectors = ceil_div(x.cols, kDotLanes);
  const bool is_direct = x.rows <= kMostDirectRows;
  if (is_direct && x.cols % kDotLanes == 0) {
    task.x = x.data;
    task.x_stride = x.stride;
    return nullptr;
  }
  task.x_stride = task.vectors * kDotLanes;
  const std::size_t tile = is_direct ? 1 : kTileM, n_tiles = ceil_div(x.rows, tile);
  auto values = std::make_unique_for_overwrite<float[]>(n_tiles * tile * task.x_stride);
  task.x = values.get();
  parallel_for(n_tiles, is_direct ? 1 : threads, [&](std::size_t i) {
    for (std::size_t m = i * tile; m < std::min((i + 1) * tile, x.rows); ++m) {
      const std::size_t at = is_direct ? m * task.x_stride : tiled_place(task.vectors, m, 0);
      lay_out(x.row(m), x.cols, values.get() + at, tile * kDotLanes);
    }
  });
  return values;
}

// Columns [begin, end) of y, in runs of rows of x between which the work may stop.
void run_in_tiles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  constexpr std::size_t kRowsAtOnce = 8 * kPanelM;
  static_assert(kRowsAtOnce % kTileM == 0);
  const auto below = [](const auto& matrix, std::size_t first, std::size_t n) {
    auto part = matrix;
    part.data += first * matrix.stride;
    part.rows = n;
    return part;
  };
  for (std::size_t first = 0; first < task.y.rows; first += kRowsAtOnce) {
    StopScope::check();
    const std::size_t n = std::min(kRowsAtOnce, task.y.rows - first);
    MatmulTask some = task;
    some.x += tiled_place(task.vectors, first, 0);
    some.rows = below(task.rows, first, n);
    some.y = below(task.y, first, n);
    run_matmul_tiles(some, begin, end);
  }
}

}  // namespace

void matmul(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
            MatrixView<float> y, std::size_t threads) {
  INGOT_CHECK(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows);
  if (x.rows == 0 || w.rows == 0) return;
  check_codes(w);
  MatmulTask task{.w = w, .rounding = rounding, .rows = x, .y = y};
  if (rounding == WeightRounding::kBf16 && is_exact_in_bf16(w)) {
    task.rounding = WeightRounding::kExact;
  }
  threads = std::clamp<std::size_t>(x.rows * w.rows * w.cols / kProductsPerThread, 1, threads);
  const std::unique_ptr<float[]> laid_out = lay_out(x, threads, task);
  const std::vector<float> table = e2m1_table(w, task.rounding);
  task.table = table.data();
  // A few chunks per thread, so that one that was held up does not hold up the others.
  const std::size_t step = x.rows <= kMostDirectRows ? 4 : kPanelN;
  const std::size_t chunks_wanted = threads == 1 ? 1 : 4 * threads;
  const std::size_t chunk = round_up(ceil_div(w.rows, chunks_wanted), step);
  const auto run = x.rows <= kMostDirectRows ? run_matmul : run_in_tiles;
  parallel_for(ceil_div(w.rows, chunk), threads,
               [&](std::size_t i) { run(task, i * chunk, std::min((i + 1) * chunk, w.rows)); });
}

void matmul_transposed(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
                       MatrixView<float> y, std::size_t threads) {
  INGOT_CHECK(x.cols == w.rows && y.rows == x.rows && y.cols == w.cols);
  if (y.rows == 0 || y.cols == 0) return;
  TransposedTask task{.x = x, .w = w, .rounding = rounding, .y = y};
  if (w.rows == 0) {
    scalar::run_transposed(task, 0, y.cols);
    return;
  }
  check_codes(w);
  const std::vector<float> table = e2m1_table(w, rounding);
  task.table = table.data();
  threads = std::clamp<std::size_t>(x.rows * w.rows * w.cols / kProductsPerThread, 1, threads);
  // Columns of 4-bit codes are decoded by cache lines.
  constexpr std::size_t kStep = 128;
  const std::size_t chunks_wanted = threads == 1 ? 1 : 2 * threads;
  const std::size_t chunk = round_up(ceil_div(y.cols, chunks_wanted), kStep);
  parallel_for(ceil_div(y.cols, chunk), threads, [&](std::size_t i) {
    run_matmul_transposed(task, i * chunk, std::min((i + 1) * chunk, y.cols));
  });
}

void decode_row(const CodedMatrix& w, std::size_t row, std::span<float> out) {
  INGOT_CHECK(row < w.rows);
  quantize::decode(w.row_range(row, 1),
                   {.data = out.data(), .rows = 1, .cols = out.size(), .stride = out.size()});
}

}  // namespace ingot::inference
