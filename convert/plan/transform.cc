#include "convert/plan/transform.h"

#include <algorithm>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::convert {
namespace {

constexpr std::uint64_t kTargetOutputBytes = std::uint64_t{1} << 20;

}  // namespace

BandPlan::BandPlan(const formats::LogicalTensor& tensor, formats::SchemeId to) {
  const std::uint64_t elements = *formats::element_count(tensor.shape);
  output_bits_ = formats::dtype_bits(formats::plain_dtype(to));
  const bool blocks = tensor.encoding.block_cols != 0;
  source_bits_ = blocks ? 8 : formats::dtype_bits(formats::plain_dtype(tensor.encoding.scheme));
  if (elements == 0) return;

  const std::uint64_t target = kTargetOutputBytes * 8 / std::max(source_bits_, output_bits_);
  if (!blocks) {
    rows_ = rows_per_matrix_ = 1;
    cols_ = elements;
    band_rows_ = 1;
    band_cols_ = std::min(cols_, target);
  } else {
    cols_ = tensor.shape.back();
    rows_per_matrix_ = tensor.shape[tensor.shape.size() - 2];
    rows_ = elements / cols_;
    band_rows_ = std::max<std::uint64_t>(1, target / cols_);
    // Whole blocks of rows where they fit, else a power of two, so that a band seldom touches two
    // rows of scales.
    if (band_rows_ >= tensor.encoding.block_rows) {
      band_rows_ = round_down(band_rows_, tensor.encoding.block_rows);
    } else {
      while ((band_rows_ & (band_rows_ - 1)) != 0) band_rows_ &= band_rows_ - 1;
    }
    band_rows_ = std::min(band_rows_, rows_);
    band_cols_ = cols_;
    if (cols_ > target) {
      band_cols_ = round_down(target, tensor.encoding.block_cols);
      if (band_cols_ == 0) {
        throw Error(ErrorCode::kUnsupported, "one scale covers more than " +
                                                 std::to_string(target) +
                                                 " columns; such blocks are not converted")
            .in_tensor(tensor.name);
      }
    }
  }
  row_bands_ = ceil_div(rows_, band_rows_);
  col_bands_ = ceil_div(cols_, band_cols_);
}

Band BandPlan::band(std::uint64_t index) const {
  Band band;
  band.first_row = index / col_bands_ * band_rows_;
  band.first_col = index % col_bands_ * band_cols_;
  band.rows = std::min(band_rows_, rows_ - band.first_row);
  band.cols = std::min(band_cols_, cols_ - band.first_col);
  const std::uint64_t first = band.first_row * cols_ + band.first_col;
  const std::uint64_t elements = band.rows * band.cols;
  band.source_offset = first * source_bits_ / 8;
  band.source_bytes = elements * source_bits_ / 8;
  band.output_offset = first * output_bits_ / 8;
  band.output_bytes = elements * output_bits_ / 8;
  return band;
}

quantize::DecodeFaults transform_band(const formats::LogicalTensor& tensor, const BandPlan& bands,
                                      const Band& band, formats::SchemeId to,
                                      std::span<const float> scales,
                                      std::span<const std::byte> source,
                                      std::span<std::byte> output) {
  INGOT_CHECK(source.size() == band.source_bytes && output.size() == band.output_bytes);
  const quantize::Transcode transcode = quantize::find_transcode(tensor.encoding.scheme, to);
  INGOT_CHECK(transcode != nullptr);
  const quantize::EncodedRows rows{
      .weight = source.data(),
      .rows = band.rows,
      .cols = band.cols,
      .first_row = band.first_row,
      .first_col = band.first_col,
      .scales = scales,
      .rows_per_matrix = bands.rows_per_matrix(),
      .scale_cols =
          tensor.encoding.block_cols == 0 ? 0 : ceil_div(bands.cols(), tensor.encoding.block_cols),
      .block_rows = tensor.encoding.block_rows,
      .block_cols = tensor.encoding.block_cols};
  return transcode(rows, output);
}

}  // namespace ingot::convert
