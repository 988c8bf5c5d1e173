#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/container/tensor.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/tensor_source.h"
#include "quantize/scheme.h"

namespace ingot::verify {

/// A rectangle of the flattened matrix [rows, cols], read and compared at once.
struct WeightBand {
  std::uint64_t row = 0, rows = 0, col = 0, cols = 0;
};

/// How the rows of a pair of tensors are cut: small enough that both sides stay in a processor's
/// cache between reading and decoding. A function of only shape, groups and sample.
class WeightBands {
 public:
  /// `groups`: rows and columns that share a scale, on both sides; 0 without scales.
  WeightBands(const formats::Shape& shape, std::array<std::uint64_t, 2> source_group,
              std::array<std::uint64_t, 2> output_group, double sample);

  [[nodiscard]] std::uint64_t count() const { return bands_down_ * bands_across_; }
  [[nodiscard]] WeightBand band(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t cols() const { return cols_; }
  [[nodiscard]] std::uint64_t elements() const;       ///< elements of all bands
  [[nodiscard]] std::uint64_t band_elements() const;  ///< elements of the largest band
  /// Columns to decode at a time: whole groups, few enough for the nearest cache.
  [[nodiscard]] std::uint64_t tile_cols() const { return tile_cols_; }

 private:
  std::uint64_t rows_ = 0, cols_ = 0;
  std::uint64_t row_step_ = 1, col_step_ = 1, tile_cols_ = 1;
  std::uint64_t bands_ = 0;  ///< down the whole matrix
  std::uint64_t bands_down_ = 0, bands_across_ = 0;
};

/// One tensor of a checkpoint.
struct ComparedTensor {
  const formats::TensorSource& source;
  const formats::LogicalTensor& tensor;
};

/// Bits of a stored code, or of a number of a plain dtype.
std::uint64_t code_bits(const ComparedTensor& side);

/// Codes of a band, and the scales that they are multiplied with.
struct EncodedBand {
  std::vector<float> scales;
  std::vector<std::uint8_t> zeros;
  quantize::CodedMatrix run;
};

/// The scales of a band, without its codes. `scales`: those of the tensor; null where it has none,
/// or only codes count.
EncodedBand read_scales(const ComparedTensor& side, const WeightBand& band,
                        const formats::ScaleReader* scales);

/// Reads the codes of some rows of a band into `codes`, which grows where it is too small and must
/// outlive the result.
quantize::CodedMatrix read_codes(const ComparedTensor& side, const EncodedBand& band,
                                 std::uint64_t row, std::uint64_t rows,
                                 std::vector<std::byte>& codes);

/// Reads codes and scales of all rows of a band.
EncodedBand read_band(const ComparedTensor& side, const WeightBand& band,
                      const formats::ScaleReader* scales, std::vector<std::byte>& codes);

}  // namespace ingot::verify
