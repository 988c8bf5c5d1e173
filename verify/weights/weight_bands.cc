#include "verify/weights/weight_bands.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "formats/base/checked.h"
#include "formats/container/dtype.h"
#include "verify/weights/element_row.h"

namespace ingot::verify {
namespace {

constexpr std::uint64_t kBandElements = std::uint64_t{1} << 18;
/// Groups of more rows are cut: their scales are few.
constexpr std::uint64_t kMaxGroupRows = 256;
/// Rows at a time of a sample, that reads are not too small.
constexpr std::uint64_t kSampleRows = 16;

/// The number of columns after which groups of both sides begin again, in pieces of the sums; 0
/// when that is more than is decoded at a time.
std::uint64_t common_cols(std::uint64_t a, std::uint64_t b, std::uint64_t cols) {
  std::uint64_t unit = kRowPiece;
  for (const std::uint64_t group : {a, b}) {
    if (group == 0 || group >= cols) continue;  // one group over all columns, or no groups
    if (group > kBandElements) return 0;
    unit = std::lcm(unit, group);  // at most 2^29 before it is found too large
    if (unit > kBandElements) return 0;
  }
  return unit;
}

}  // namespace

WeightBands::WeightBands(const formats::Shape& shape, std::array<std::uint64_t, 2> source_group,
                         std::array<std::uint64_t, 2> output_group, double sample) {
  const std::uint64_t elements = formats::element_count(shape).value_or(0);
  if (elements == 0) return;
  cols_ = shape.empty() ? 1 : shape.back();
  rows_ = elements / cols_;
  const std::uint64_t unit = common_cols(source_group[1], output_group[1], cols_);
  tile_cols_ = unit == 0 ? cols_ : std::min(unit, cols_);
  col_step_ = unit == 0 ? cols_ : std::min(round_down(kBandElements, unit), cols_);
  if (col_step_ == cols_) {
    const std::uint64_t most = std::max<std::uint64_t>(kBandElements / cols_, 1);
    const std::uint64_t group =
        std::lcm(std::clamp<std::uint64_t>(source_group[0], 1, kMaxGroupRows),
                 std::clamp<std::uint64_t>(output_group[0], 1, kMaxGroupRows));
    row_step_ = group <= most ? round_down(most, group) : most;
    if (sample < 1) {
      row_step_ = std::max(group <= most ? group : 1, std::min(kSampleRows, most));
    }
  }
  bands_ = ceil_div(rows_, row_step_);
  bands_across_ = ceil_div(cols_, col_step_);
  const auto wanted = static_cast<std::uint64_t>(std::ceil(static_cast<double>(bands_) * sample));
  bands_down_ = std::clamp<std::uint64_t>(wanted, 1, bands_);
}

WeightBand WeightBands::band(std::uint64_t index) const {
  const std::uint64_t down = index / bands_across_;
  // The middle of as many parts of the rows as there are bands to look at.
  const std::uint64_t part = bands_ / bands_down_;
  const std::uint64_t at = down * part + down * (bands_ % bands_down_) / bands_down_ + part / 2;
  WeightBand band{.row = at * row_step_, .col = index % bands_across_ * col_step_};
  band.rows = std::min(row_step_, rows_ - band.row);
  band.cols = std::min(col_step_, cols_ - band.col);
  return band;
}

std::uint64_t WeightBands::elements() const {
  std::uint64_t sum = 0;
  if (bands_down_ == bands_) return rows_ * cols_;
  for (std::uint64_t i = 0; i < count(); i += bands_across_) sum += band(i).rows * cols_;
  return sum;
}

std::uint64_t WeightBands::band_elements() const {
  return std::min(row_step_, rows_) * std::min(col_step_, cols_);
}

std::uint64_t code_bits(const ComparedTensor& side) {
  const formats::StoredTensor& stored = side.source.stored()[side.tensor.encoding.stored.weight()];
  const std::uint32_t bits = formats::scheme_facts(side.tensor.encoding.scheme).code_bits;
  return bits != 0 ? bits : formats::dtype_bits(stored.dtype);
}

EncodedBand read_scales(const ComparedTensor& side, const WeightBand& band,
                        const formats::ScaleReader* scales) {
  const formats::LogicalTensor& tensor = side.tensor;
  EncodedBand read;
  read.run = {
      .scheme = tensor.encoding.scheme,
      .rows = band.rows,
      .cols = band.cols,
      .row_bytes = band.cols * code_bits(side) / 8,
      .first_row = band.row,
      .first_col = band.col,
      .rows_per_matrix = tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2]};
  if (scales == nullptr) return read;
  const auto range = scales->range_of(band.row, band.rows);
  read.scales = scales->read(range);
  read.run.scales = read.scales;
  read.zeros = scales->read_zeros(range);
  read.run.zeros = read.zeros;
  read.run.group_order = scales->group_order();
  read.run.column_factors = scales->column_factors();
  read.run.first_scale_row = range.first;
  read.run.scale_cols = scales->cols();
  read.run.block_rows = tensor.encoding.block_rows;
  read.run.block_cols = tensor.encoding.block_cols;
  return read;
}

quantize::CodedMatrix read_codes(const ComparedTensor& side, const EncodedBand& band,
                                 std::uint64_t row, std::uint64_t rows,
                                 std::vector<std::byte>& codes) {
  quantize::CodedMatrix run = band.run;
  run.rows = rows;
  run.first_row += row;
  const std::uint64_t bits = code_bits(side),
                      all_cols = side.tensor.shape.empty() ? 1 : side.tensor.shape.back();
  const std::uint64_t n_bytes = rows * run.row_bytes;
  if (codes.size() < n_bytes) codes.resize(n_bytes);
  side.source.read(side.tensor.encoding.stored.weight(),
                   (run.first_row * all_cols + run.first_col) * bits / 8,
                   std::span(codes).first(n_bytes));
  run.codes = codes.data();
  return run;
}

EncodedBand read_band(const ComparedTensor& side, const WeightBand& band,
                      const formats::ScaleReader* scales, std::vector<std::byte>& codes) {
  EncodedBand read = read_scales(side, band, scales);
  read.run = read_codes(side, read, 0, band.rows, codes);
  return read;
}

}  // namespace ingot::verify
