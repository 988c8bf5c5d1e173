#include "convert/plan/band.h"

#include <algorithm>

#include "formats/base/checked.h"

namespace ingot::convert {
namespace {

// A band is read in one go; about as much stays in cache until it is hashed and written.
constexpr std::uint64_t kBandBytes = std::uint64_t{1} << 20;
// Values of a tile, twice in FP32: half of a common second-level cache.
constexpr std::uint64_t kTileValues = std::uint64_t{1} << 15;
// Columns of a tile where a row may be cut: a multiple of every group along a row, and of the unit
// of error sums.
constexpr std::uint64_t kTileCols = 8192;

}  // namespace

BandShape::BandShape(const formats::LogicalTensor& tensor, formats::SchemeId to,
                     std::array<std::uint64_t, 2> block) {
  const std::uint64_t elements = *formats::element_count(tensor.shape);
  const formats::SchemeFacts& from_facts = formats::scheme_facts(tensor.encoding.scheme);
  source_bits = from_facts.code_bits;
  output_bits = formats::scheme_facts(to).code_bits;
  cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  rows = tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2];
  matrices = elements == 0 ? 0 : elements / cols / rows;
  if (elements == 0) return;

  // A scale over the whole matrix is computed beforehand and cuts nothing.
  const formats::SchemeFacts& to_facts = formats::scheme_facts(to);
  const bool is_whole = to_facts.quantized && to_facts.group_rows == 0;
  const std::uint64_t unit_rows = is_whole ? 1 : std::clamp<std::uint64_t>(block[0], 1, rows);
  const std::uint64_t row_bytes =
      std::max<std::uint64_t>(cols * std::max(source_bits, output_bits) / 8, 1);
  band_rows = std::max(round_down(kBandBytes / row_bytes, unit_rows), unit_rows);
  band_rows = std::min(band_rows, rows);

  const bool needs_whole_row = block[1] >= cols && !is_whole && block[1] != 0;
  if (needs_whole_row) {
    tile_cols = cols;
  } else if (unit_rows > 1) {
    tile_cols = std::min(cols, std::max(round_down(kTileValues / unit_rows, block[1]), block[1]));
  } else {
    tile_cols = std::min(cols, kTileCols);
  }
  tile_rows = std::max(round_down(kTileValues / tile_cols, unit_rows), unit_rows);
  tile_rows = std::min(tile_rows, band_rows);
}

std::uint64_t BandShape::bands_per_matrix() const {
  return ceil_div(rows, band_rows);
}

BandShape::Band BandShape::band(std::uint64_t index) const {
  const std::uint64_t matrix = index / bands_per_matrix();
  const std::uint64_t first = index % bands_per_matrix() * band_rows;
  return {.first_row = matrix * rows + first, .rows = std::min(band_rows, rows - first)};
}

std::uint64_t BandShape::buffer_bytes() const {
  return band_rows * (row_bytes_in() + row_bytes_out()) + 2 * tile_rows * tile_cols * sizeof(float);
}

}  // namespace ingot::convert
