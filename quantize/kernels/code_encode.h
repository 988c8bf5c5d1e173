#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/tensor.h"
#include "formats/storage/encoding.h"
#include "quantize/coded_matrix.h"

namespace ingot::quantize {

/// Finite values and the effective scales of their groups. The run starts at the first row and
/// column of a group; groups at its end may be shorter.
struct ScaledGroups {
  formats::MatrixView<const float> values;
  std::uint64_t block_rows = 0, block_cols = 0;
  std::span<const float> scales;  ///< scales, not zero; row-major over the groups of the run
  std::span<const std::uint8_t> zeros{};  ///< INT4: zero points as `scales`; empty: 8 everywhere

  [[nodiscard]] std::uint8_t zero(std::size_t group) const {
    return zeros.empty() ? kInt4Zero : zeros[group];
  }
};

/// Codes of a run: each is value / scale (one FP32 division), rounded to the nearest code of the
/// kind under its zero point (kernels/codes.h). Columns fill whole bytes. `stride` counts bytes
/// from row to row. Pure; the bytes are those of the scalar twin on every SIMD target.
void encode_codes(formats::CodeKind kind, const ScaledGroups& in, std::byte* codes,
                  std::size_t stride);
namespace scalar {
void encode_codes(formats::CodeKind kind, const ScaledGroups& in, std::byte* codes,
                  std::size_t stride);
}  // namespace scalar

/// Calls visit(row, first column, end, group) for every piece of a row that lies in one group, in
/// row-major order. Groups are numbered row-major; there must be `n_groups` of them.
template <typename Visit>
void for_each_group_piece(formats::MatrixView<const float> values, std::uint64_t block_rows,
                          std::uint64_t block_cols, std::size_t n_groups, const Visit& visit) {
  if (values.rows == 0 || values.cols == 0) return;
  INGOT_CHECK(block_rows > 0 && block_cols > 0);
  const auto across = static_cast<std::size_t>(ceil_div(values.cols, block_cols));
  INGOT_CHECK(n_groups / across >= ceil_div(values.rows, block_rows));
  for (std::size_t r = 0; r < values.rows; ++r) {
    std::size_t group = static_cast<std::size_t>(r / block_rows) * across;
    for (std::size_t c = 0; c < values.cols; ++group) {
      const std::size_t end =
          block_cols < values.cols - c ? c + static_cast<std::size_t>(block_cols) : values.cols;
      visit(r, c, end, group);
      c = end;
    }
  }
}

}  // namespace ingot::quantize
