#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/kernels/matmul.h"

namespace ingot::inference {

/// Rows of x that are multiplied as they stand while weights are decoded in registers. For
/// more, weights are decoded into tiles.
inline constexpr std::size_t kMostDirectRows = 3;

/// Sides of a register tile: rows of x times rows of w.
inline constexpr std::size_t kTileM = 4;
inline constexpr std::size_t kTileN = 6;
/// Rows of w that are decoded together, in columns of kTileVectors x 16: 48 KiB.
inline constexpr std::size_t kPanelN = 4 * kTileN;
inline constexpr std::size_t kTileVectors = 32;
/// Rows of x multiplied with them: 256 KiB of those columns.
inline constexpr std::size_t kPanelM = 128;

/// Decoded weights and sums of a panel, 240 KiB; each thread that multiplies by tiles has one.
struct MatmulTiles {
  alignas(64) float weights[kPanelN / kTileN][kTileVectors * kTileN * kDotLanes];
  alignas(64) float lanes[kPanelM / kTileM][kPanelN / kTileN][kTileM * kTileN * kDotLanes];
};

/// A product under way. Columns of x are padded with zeros to `vectors` x 16 and, where the
/// target's decoder wants it, interleaved.
struct MatmulTask {
  CodedMatrix w;
  WeightRounding rounding = WeightRounding::kExact;
  const float* table = nullptr;  ///< values of e2m1_table()
  std::size_t vectors = 0;
  /// Up to kMostDirectRows: row-major, `x_stride` apart. Else tiles of kTileM rows, [vectors,
  /// kTileM, 16], of which the last may lack rows.
  const float* x = nullptr;
  std::size_t x_stride = 0;
  MatrixView<const float> rows;  ///< x in the layout of the caller
  MatrixView<float> y;
};

/// Index of element (m, k) in x of tiles.
constexpr std::size_t tiled_place(std::size_t vectors, std::size_t m, std::size_t k) {
  return ((m / kTileM * vectors + k / kDotLanes) * kTileM + m % kTileM) * kDotLanes + k % kDotLanes;
}

/// Returns 256 x 16 weights: one for each scale code and each E2M1 code. Empty where this
/// processor's kernels use none for the matrix.
std::vector<float> e2m1_table(const CodedMatrix& w, WeightRounding rounding);

/// Computes columns [begin, end) of y, that is, rows of w.
void run_matmul(const MatmulTask& task, std::size_t begin, std::size_t end);
/// Computes columns [begin, end) of y for up to kMostDirectRows rows of x and weights of a family.
void run_matmul_bytes(const MatmulTask& task, std::size_t begin, std::size_t end);
void run_matmul_nibbles(const MatmulTask& task, std::size_t begin, std::size_t end);
/// Computes columns [begin, end) of y for more rows of x than kMostDirectRows.
void run_matmul_tiles(const MatmulTask& task, std::size_t begin, std::size_t end);

/// A product with a transposed matrix under way; w has at least one row.
struct TransposedTask {
  MatrixView<const float> x;
  CodedMatrix w;
  WeightRounding rounding = WeightRounding::kExact;
  const float* table = nullptr;  ///< values of e2m1_table()
  MatrixView<float> y;
};

namespace scalar {
/// Compute columns [begin, end) of y: the specifications.
void run_matmul(const MatmulTask& task, std::size_t begin, std::size_t end);
void run_transposed(const TransposedTask& task, std::size_t begin, std::size_t end);
}  // namespace scalar

/// Computes columns [begin, end) of y on this processor's vectors; `begin` is a multiple of 16.
void run_matmul_transposed(const TransposedTask& task, std::size_t begin, std::size_t end);

}  // namespace ingot::inference
