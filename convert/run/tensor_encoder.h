#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "convert/plan/band.h"
#include "convert/run/item_runner.h"
#include "convert/run/part_writer.h"
#include "quantize/scheme.h"

namespace ingot::convert {

/// Decodes and encodes one tensor: band by band from the file, tile by tile in cache. The error is
/// taken from the codes as they are written.
class TensorEncoder {
 public:
  /// `amax` is what reduce() gave for the tensor's group; nothing for tensors without one.
  TensorEncoder(ItemRunner& runner, std::uint32_t item, std::optional<float> amax);

  /// The reduction over this tensor alone: its largest magnitude, or its largest MXFP4 scale when
  /// the group is repacked.
  float reduce();
  /// Writes every part and returns the record.
  ItemRecord run();

 private:
  struct Tile {
    std::uint64_t row = 0, rows = 0;  // within the band
    std::uint64_t col = 0, cols = 0;
  };

  quantize::EncodedRows source_rows(std::span<const std::byte> codes, const BandShape::Band& band,
                                    std::span<const float> scales,
                                    formats::ScaleReader::Range range) const;
  [[nodiscard]] quantize::EncodedRows tile_of(const quantize::EncodedRows& band,
                                              const Tile& tile) const;
  void encode_band(const BandShape::Band& band, std::span<const std::byte> codes);
  void decode_tile(const quantize::EncodedRows& source, const BandShape::Band& band,
                   const Tile& tile);
  void encode_tile(const quantize::EncodedRows& source, const BandShape::Band& band,
                   const Tile& tile);
  void measure_tile(const Tile& tile, const quantize::EncodeOutput& out);
  void settle_values(const BandShape::Band& band, const Tile& tile);
  std::vector<float> given_scales(const BandShape::Band& band, const Tile& tile) const;
  void add_row_sums(const BandShape::Band& band);
  void write_remaining_parts();
  [[nodiscard]] bool repacks() const;
  [[nodiscard]] std::uint64_t groups_across(std::uint64_t cols) const;

  ItemRunner& runner_;
  const std::uint32_t item_;
  const PlannedTensor& planned_;
  const formats::LogicalTensor& tensor_;
  const quantize::Scheme& from_;
  const quantize::Scheme& to_;
  const BandShape shape_;
  const formats::ScaleReader scales_;
  const formats::SchemeFacts& facts_;  // of the target
  std::optional<formats::ScaleReader> release_;
  std::optional<float> amax_;
  bool repacks_ = false;
  float global_ = 1;
  bool values_are_finite_ = false;  // of the band at hand, NaN codes apart
  bool nan_allowed_ = false, nonfinite_allowed_ = false, overflow_allowed_ = false;

  std::span<std::byte> payload_;        // codes of the band at hand
  std::vector<float> importance_;       // of the columns; empty without
  std::vector<std::byte> band_scales_;  // of the band at hand, row-major, as written
  std::vector<float> tile_scales_;      // effective
  std::vector<float> row_scales_;       // of all rows, where a part is made of them
  std::vector<std::int64_t> row_sums_;
  std::vector<PartWriter> parts_;  // while run() runs
  quantize::QualitySums quality_;
};

}  // namespace ingot::convert
