#pragma once

#include <cstdint>

#include "formats/places/nest.h"

namespace ingot::formats {

/// Rows of a matrix of bytes, in a file that has its columns as rows: byte (r, c) of them is
/// c * `stride` + r bytes behind the first. The default: rows that are not turned.
struct TurnedRows {
  std::uint64_t rows = 0, cols = 0;
  std::uint64_t stride = 0;  ///< all rows that the file has of the matrix; 0: not turned

  [[nodiscard]] bool is_turned() const { return stride > 0; }
  /// The rows one behind the other; its piece 0 is the file from the first byte on.
  [[nodiscard]] Nest nest() const {
    return {8, {{.n = rows, .stride = 1}, {.n = cols, .stride = stride}}};
  }
  /// Calls visit(at, n, from) for the runs of the file that hold bytes [begin, end) of the rows:
  /// `n` bytes at `at` are byte `from` of these and the n - 1 that follow at steps of `cols`.
  template <typename Visit>
  void for_each_run(std::uint64_t begin, std::uint64_t end, const Visit& visit) const {
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t row = at / cols, col = at % cols;
      const std::uint64_t n = col == 0 && end - at >= cols ? (end - at) / cols : 1;
      const std::uint64_t stop = n == 1 && end - at < cols - col ? col + (end - at) : cols;
      for (std::uint64_t c = col; c < stop; ++c) visit(c * stride + row, n, row * cols + c - begin);
      at = n == 1 ? row * cols + stop : at + n * cols;
    }
  }
};

}  // namespace ingot::formats
