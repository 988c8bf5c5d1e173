#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/kernels/matmul.h"
#include "quantize/coded_matrix.h"
#include "quantize/kernels/codes.h"

namespace ingot::inference {

inline float rounded_weight(float value, WeightRounding rounding) {
  return rounding == WeightRounding::kExact
             ? value
             : formats::float_from_bf16(formats::bf16_from_float(value));
}

/// The values of all E2M1 codes.
inline constexpr std::array<float, 16> kE2m1Values = [] {
  std::array<float, 16> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = quantize::E2m1::value(static_cast<std::uint8_t>(i));
  }
  return values;
}();

inline bool has_e2m1_codes(const CodedMatrix& w) {
  return formats::scheme_facts(w.scheme).code == formats::CodeKind::kE2m1;
}

/// True if all columns of a matrix share one scale, or one scale per row.
inline bool is_one_group(const CodedMatrix& w) {
  return w.first_col + w.cols <= w.block_cols;
}

/// True if vectors of sixteen columns never straddle two scale groups, E2M1 codes have groups of 16
/// or 32 columns with scales held as codes, and INT4 codes groups of a power of two or of a row.
inline bool has_regular_groups(const CodedMatrix& w) {
  if (formats::scheme_facts(w.scheme).code == formats::CodeKind::kInt4) {
    const bool is_run = w.group_order.empty() && w.first_col % kDotLanes == 0;
    const bool is_power = std::has_single_bit(w.block_cols) && w.block_cols >= kDotLanes;
    return is_run && (is_power || is_one_group(w));
  }
  if (has_e2m1_codes(w)) {
    return w.scale_codes != nullptr && (w.block_cols == 16 || w.block_cols == 32) &&
           w.first_col % w.block_cols == 0;
  }
  if (w.block_cols == 0) return true;
  return (w.block_cols % kDotLanes == 0 && w.first_col % kDotLanes == 0) || is_one_group(w);
}

/// The decoders that a matrix can need, by families that are compiled apart.
enum class WeightFamily : std::uint8_t {
  kPlain,    ///< BF16, F16 and F32, and what has no regular groups
  kBytes,    ///< FP8 and INT8
  kNibbles,  ///< FP4 and INT4
};

inline WeightFamily weight_family(const CodedMatrix& w) {
  if (!has_regular_groups(w)) return WeightFamily::kPlain;
  switch (formats::scheme_facts(w.scheme).code) {
    case formats::CodeKind::kPlain:
      return WeightFamily::kPlain;
    case formats::CodeKind::kE4m3:
    case formats::CodeKind::kInt8:
      return WeightFamily::kBytes;
    case formats::CodeKind::kE2m1:
    case formats::CodeKind::kInt4:
      return WeightFamily::kNibbles;
  }
  return WeightFamily::kPlain;
}

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
  MatrixView<const float> rows;  ///< x as the caller has it
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
