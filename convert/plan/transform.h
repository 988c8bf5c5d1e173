#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/storage/tensor_source.h"
#include "quantize/scheme.h"

namespace ingot::convert {

/// A run of a tensor that is converted at once: whole rows, or a stretch of one row when a row is
/// very long.
struct Band {
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t first_col = 0, cols = 0;
  std::uint64_t source_offset = 0, source_bytes = 0;  ///< within the stored weight
  std::uint64_t output_offset = 0, output_bytes = 0;  ///< within the output part
};

/// How one cast tensor is cut into bands. Leading dimensions are flattened into rows; plain schemes
/// are cut as one long row. Bands are in order, cover the tensor, and no side of one is longer than
/// max_band_bytes() allows.
class BandPlan {
 public:
  BandPlan(const formats::LogicalTensor& tensor, formats::SchemeId to);

  [[nodiscard]] std::uint64_t count() const { return row_bands_ * col_bands_; }
  [[nodiscard]] Band band(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t rows_per_matrix() const { return rows_per_matrix_; }
  [[nodiscard]] std::uint64_t cols() const { return cols_; }

 private:
  std::uint64_t rows_ = 0, cols_ = 0, rows_per_matrix_ = 0;
  std::uint64_t band_rows_ = 1, band_cols_ = 1;
  std::uint64_t row_bands_ = 0, col_bands_ = 0;
  std::uint64_t source_bits_ = 0, output_bits_ = 0;
};

/// Bytes that one side (source or output) of a band takes at most; what a worker's buffers are
/// sized for. About 1 MiB of output is still in cache when it is hashed and handed to the kernel
/// (docs/architecture.md, "Threads and memory").
constexpr std::uint64_t max_band_bytes() {
  return std::uint64_t{2} << 20;
}

/// Converts one band. `scales` are the tensor's block scales (empty for plain schemes).
quantize::DecodeFaults transform_band(const formats::LogicalTensor& tensor, const BandPlan& bands,
                                      const Band& band, formats::SchemeId to,
                                      std::span<const float> scales,
                                      std::span<const std::byte> source,
                                      std::span<std::byte> output);

}  // namespace ingot::convert
