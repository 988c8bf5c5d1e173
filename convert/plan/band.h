#pragma once

#include <cstdint>

#include "formats/storage/tensor_source.h"

namespace ingot::convert {

/// How the rows of a tensor are cut for encoding: bands are read and written at once, tiles are
/// what is decoded and encoded while in cache. Both hold whole groups of the target, so any cut
/// gives the same bytes. A function of shapes and schemes alone.
struct BandShape {
  std::uint64_t matrices = 0, rows = 0, cols = 0;  ///< [matrices, rows, cols]; 1-D is one row
  std::uint64_t band_rows = 1;                     ///< within one matrix
  std::uint64_t tile_rows = 1, tile_cols = 1;
  std::uint32_t source_bits = 0, output_bits = 0;

  /// `block` are the target's sides of a scale group, {0, 0} for plain targets.
  BandShape(const formats::LogicalTensor& tensor, formats::SchemeId to,
            std::array<std::uint64_t, 2> block);

  [[nodiscard]] std::uint64_t bands_per_matrix() const;
  [[nodiscard]] std::uint64_t count() const { return matrices * bands_per_matrix(); }
  struct Band {
    std::uint64_t first_row = 0;  ///< of the flattened tensor
    std::uint64_t rows = 0;
  };
  [[nodiscard]] Band band(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t row_bytes_in() const { return cols * source_bits / 8; }
  [[nodiscard]] std::uint64_t row_bytes_out() const { return cols * output_bits / 8; }
  /// Memory for a band on both sides and two tiles of FP32 values.
  [[nodiscard]] std::uint64_t buffer_bytes() const;
};

}  // namespace ingot::convert
