#include "convert/plan/band.h"

#include <algorithm>
#include <bit>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "quantize/error_feedback.h"

namespace ingot::convert {
namespace {

// Values of a tile, twice in FP32: half of a common second-level cache.
constexpr std::uint64_t kTileValues = std::uint64_t{1} << 15;
// Columns of a tile where a row may be cut: a multiple of every group along a row, and of the unit
// of error sums.
constexpr std::uint64_t kTileCols = 8192;
// Rows that fill the vectors of error feedback.
constexpr std::uint64_t kCarriedRows = 32;
// Rows of a tile that a search by moments takes at once, one per lane of the longest vectors.
constexpr std::uint64_t kRowsAtOnce = 16;

BandPlan whole_tensor(const formats::LogicalTensor& tensor, formats::SchemeId to) {
  BandPlan plan;
  const std::uint64_t elements = *formats::element_count(tensor.shape);
  const std::size_t rank = tensor.shape.size();
  plan.source_bits = formats::scheme_facts(tensor.encoding.scheme).code_bits;
  plan.output_bits = formats::scheme_facts(to).code_bits;
  plan.cols = rank == 0 ? 1 : tensor.shape[rank - 1];
  plan.rows = rank < 2 ? 1 : tensor.shape[rank - 2];
  plan.matrices = elements == 0 ? 0 : elements / plan.cols / plan.rows;
  plan.band_cols = plan.cols;
  return plan;
}

// Rows of a band, in multiples of `unit`.
std::uint64_t rows_of_band(const BandPlan& plan, std::uint64_t unit) {
  const std::uint64_t row_bytes =
      std::max<std::uint64_t>(plan.cols * std::max(plan.source_bits, plan.output_bits) / 8, 1);
  return std::min(std::max(round_down(kBandBytes / row_bytes, unit), unit), plan.rows);
}

}  // namespace

BandPlan BandPlan::of_bytes(std::uint64_t n_bytes, std::uint64_t band_bytes) {
  BandPlan plan;
  plan.matrices = n_bytes == 0 ? 0 : 1;
  plan.cols = n_bytes;
  plan.band_cols = std::min(n_bytes, band_bytes);
  return plan;
}

BandPlan BandPlan::to_cast(const formats::LogicalTensor& tensor, formats::SchemeId to) {
  BandPlan plan = whole_tensor(tensor, to);
  if (plan.matrices == 0) return plan;
  const std::uint64_t most = kBandBytes * 8 / std::max(plan.source_bits, plan.output_bits);
  if (tensor.encoding.block_cols == 0) {
    plan.cols *= plan.matrices * plan.rows;
    plan.matrices = plan.rows = 1;
    plan.band_cols = std::min(plan.cols, most);
    return plan;
  }
  // Whole blocks of rows where they fit, else a power of two, so that a band seldom touches two
  // rows of scales.
  const std::uint64_t fitting = std::max<std::uint64_t>(most / plan.cols, 1);
  plan.band_rows =
      rows_of_band(plan, std::min(std::bit_floor(fitting), tensor.encoding.block_rows));
  if (plan.cols <= most) return plan;
  plan.band_cols = round_down(most, tensor.encoding.block_cols);
  if (plan.band_cols == 0) {
    throw Error(ErrorCode::kUnsupported,
                "one scale covers more than {} columns; such blocks are not converted", most)
        .in_tensor(tensor.name);
  }
  return plan;
}

BandPlan BandPlan::to_encode(const formats::LogicalTensor& tensor, formats::SchemeId to,
                             std::array<std::uint64_t, 2> block, bool carries_errors,
                             bool takes_rows_at_once) {
  BandPlan plan = whole_tensor(tensor, to);
  if (plan.matrices == 0) return plan;
  // A scale over the whole matrix is computed beforehand and cuts nothing.
  const formats::SchemeFacts& facts = formats::scheme_facts(to);
  const bool is_whole = facts.quantized && facts.group_rows == 0;
  const std::uint64_t unit_rows = is_whole ? 1 : std::clamp<std::uint64_t>(block[0], 1, plan.rows);
  if (carries_errors) {
    // The factor of the moments is read once for each tile.
    plan.band_rows = rows_of_band(plan, std::min(kCarriedRows, plan.rows));
    plan.tile_rows = std::min(plan.band_rows, 2 * kCarriedRows);
    plan.tile_cols = plan.cols;
    plan.encoder_bytes = quantize::bytes_to_carry(plan.tile_rows, plan.cols);
    return plan;
  }
  plan.band_rows = rows_of_band(plan, unit_rows);

  plan.tile_cols = std::min(plan.cols, takes_rows_at_once ? kTileValues / kRowsAtOnce : kTileCols);
  if (!is_whole && block[1] >= plan.cols && block[1] != 0) {
    plan.tile_cols = plan.cols;
  } else if (unit_rows > 1) {
    plan.tile_cols =
        std::min(plan.cols, std::max(round_down(kTileValues / unit_rows, block[1]), block[1]));
  }
  plan.tile_rows = std::max(round_down(kTileValues / plan.tile_cols, unit_rows), unit_rows);
  if (takes_rows_at_once && unit_rows == 1) plan.tile_rows = std::max(plan.tile_rows, kRowsAtOnce);
  plan.tile_rows = std::min(plan.tile_rows, plan.band_rows);
  return plan;
}

std::uint64_t BandPlan::count() const {
  if (matrices == 0) return 0;
  return matrices * ceil_div(rows, band_rows) * ceil_div(cols, band_cols);
}

Band BandPlan::band(std::uint64_t index) const {
  const std::uint64_t across = ceil_div(cols, band_cols), down = ceil_div(rows, band_rows);
  const std::uint64_t row = index / across % down * band_rows;
  Band band{.first_row = index / across / down * rows + row,
            .rows = std::min(band_rows, rows - row),
            .first_col = index % across * band_cols};
  band.cols = std::min(band_cols, cols - band.first_col);
  band.source_offset = (band.first_row * cols + band.first_col) * source_bits / 8;
  band.source_bytes = band.rows * band.cols * source_bits / 8;
  band.output_bytes = band.rows * band.cols * output_bits / 8;
  return band;
}

std::uint64_t BandPlan::buffer_bytes() const {
  return band_rows * (row_bytes_in() + row_bytes_out()) +
         2 * tile_rows * tile_cols * sizeof(float) + encoder_bytes;
}

}  // namespace ingot::convert
