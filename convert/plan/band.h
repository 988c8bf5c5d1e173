#pragma once

#include <array>
#include <cstdint>

#include "formats/storage/tensor_source.h"

namespace ingot::convert {

/// A run of a tensor that is read, converted and written at once: whole rows of one matrix, or a
/// stretch of one row.
struct Band {
  std::uint64_t first_row = 0, rows = 0;  ///< rows of the flattened tensor
  std::uint64_t first_col = 0, cols = 0;
  std::uint64_t source_offset = 0, source_bytes = 0;  ///< within the stored values
  std::uint64_t output_bytes = 0;
};

/// How a tensor is cut for one pass over its bytes: bands follow one another and cover it, and any
/// cut gives the same bytes. A function of only shapes and schemes.
struct BandPlan {
  std::uint64_t matrices = 1, rows = 1, cols = 0;  ///< [matrices, rows, cols]; 1-D is one row
  std::uint64_t band_rows = 1, band_cols = 0;      ///< the longest band
  std::uint64_t tile_rows = 1, tile_cols = 1;      ///< tiles of to_encode(), encoded while in cache
  std::uint32_t source_bits = 8, output_bits = 8;  ///< bits of a value
  std::uint64_t encoder_bytes = 0;                 ///< memory of the encoder, in addition to tiles

  /// Bytes without a meaning, `band_bytes` at a time.
  static BandPlan of_bytes(std::uint64_t n_bytes, std::uint64_t band_bytes);
  /// For a fused kernel, which can cut between any columns that have scales of their own. Throws
  /// kUnsupported when one scale covers more columns than a band holds.
  static BandPlan to_cast(const formats::LogicalTensor& tensor, formats::SchemeId to);
  /// For the encoder: bands and tiles hold whole groups of the target. `block` are the sides of a
  /// group, {0, 0} for plain targets. With `carries_errors` tiles hold whole rows;
  /// `takes_rows_at_once`: the encoder wants tiles of several rows.
  static BandPlan to_encode(const formats::LogicalTensor& tensor, formats::SchemeId to,
                            std::array<std::uint64_t, 2> block, bool carries_errors = false,
                            bool takes_rows_at_once = false);

  [[nodiscard]] std::uint64_t count() const;
  [[nodiscard]] Band band(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t row_bytes_in() const { return cols * source_bits / 8; }
  [[nodiscard]] std::uint64_t row_bytes_out() const { return cols * output_bits / 8; }
  /// Memory for a band on both sides, two tiles of FP32 values, and the encoder's own.
  [[nodiscard]] std::uint64_t buffer_bytes() const;
};

/// A band is read in one go; about as much stays in cache until it is hashed and written
/// (docs/architecture.md, "Threads and memory").
inline constexpr std::uint64_t kBandBytes = std::uint64_t{1} << 20;

}  // namespace ingot::convert
