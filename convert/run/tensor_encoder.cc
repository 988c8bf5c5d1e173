#include "convert/run/tensor_encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "convert/recipe/importance.h"
#include "convert/run/ascend_parts.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "quantize/repack.h"
#include "quantize/rows.h"

namespace ingot::convert {

using formats::Part;
using formats::SchemeId;
using quantize::EncodedRows;

namespace {

// Times any code, of which 448 is the largest, this is still a number.
constexpr float kLargestOrdinaryScale = 0x1p100F;

}  // namespace

TensorEncoder::TensorEncoder(ItemRunner& runner, std::uint32_t item, std::optional<float> amax)
    : runner_(runner),
      item_(item),
      planned_(runner.context_.plan.tensors[item]),
      tensor_(runner.context_.source.tensors()[planned_.tensor]),
      from_(*quantize::find_scheme(tensor_.encoding.scheme)),
      to_(*quantize::find_scheme(planned_.to)),
      shape_(tensor_, planned_.to, planned_.block),
      scales_(runner.context_.source, tensor_, runner.scale_policy(tensor_)),
      facts_(formats::scheme_facts(planned_.to)),
      amax_(amax),
      repacks_(repacks()),
      nan_allowed_(any_matches(runner.context_.recipe.allow.nan_code, tensor_.name)),
      nonfinite_allowed_(any_matches(runner.context_.recipe.allow.nonfinite, tensor_.name)),
      overflow_allowed_(any_matches(runner.context_.recipe.allow.f16_overflow, tensor_.name)) {
  if (planned_.scales != PlannedTensor::kNone) {
    const formats::Checkpoint& release = *runner.context_.recipe.choices.scales_from;
    release_.emplace(release, release.tensors()[planned_.scales]);
  }
  if (planned_.is_weighted) {
    const Importance& importance = *runner.context_.recipe.choices.importance;
    importance_ = importance.weights(importance.find(formats::module_name(tensor_.name)).value());
  }
  if (amax_ && to_.global != nullptr) {
    const bool divides = planned_.spelling->global_divides;
    global_ = repacks_ ? quantize::repacked_global(*amax_, divides)
                       : to_.global(*amax_, runner.context_.plan.encode, divides);
  }
}

// MXFP4 becomes NVFP4 without rounding where all members of the group can.
bool TensorEncoder::repacks() const {
  if (planned_.to != SchemeId::kNvfp4 || planned_.group == PlannedTensor::kNone) return false;
  const Plan& plan = runner_.context_.plan;
  const auto& members = plan.groups[planned_.group];
  return std::all_of(members.begin(), members.end(), [&](std::uint32_t member) {
    const formats::LogicalTensor& tensor =
        runner_.context_.source.tensors()[plan.tensors[member].tensor];
    return tensor.encoding.scheme == SchemeId::kMxfp4;
  });
}

std::uint64_t TensorEncoder::groups_across(std::uint64_t cols) const {
  return planned_.block[1] == 0 ? 0 : ceil_div(cols, planned_.block[1]);
}

EncodedRows TensorEncoder::source_rows(std::span<const std::byte> codes,
                                       const BandShape::Band& band, std::span<const float> scales,
                                       formats::ScaleReader::Range range) const {
  return {.weight = codes.data(),
          .rows = band.rows,
          .cols = shape_.cols,
          .stride = shape_.cols,
          .first_row = band.first_row,
          .first_col = 0,
          .scales = scales,
          .first_scale_row = range.first,
          .rows_per_matrix = shape_.rows,
          .scale_cols = scales_.cols(),
          .block_rows = tensor_.encoding.block_rows,
          .block_cols = tensor_.encoding.block_cols};
}

float TensorEncoder::reduce() {
  float largest = 0;
  runner_.input_.resize(
      std::max<std::uint64_t>(runner_.input_.size(), shape_.band_rows * shape_.row_bytes_in()));
  for (std::uint64_t b = 0; b < shape_.count(); ++b) {
    runner_.context_.check_stop();
    const BandShape::Band band = shape_.band(b);
    const auto buffer = std::span(runner_.input_).first(band.rows * shape_.row_bytes_in());
    const auto codes = runner_.read_codes(tensor_, band.first_row * shape_.row_bytes_in(), buffer);
    const formats::ScaleReader::Range range = scales_.range_of(band.first_row, band.rows);
    const std::vector<float> scales = scales_.read(range);
    const StageTimer timer(runner_.context_.times.compute_ns, runner_.context_.times.compute_bytes,
                           0);
    const EncodedRows rows = source_rows(codes, band, scales, range);
    largest = std::max(largest, repacks_ ? quantize::largest_mxfp4_scale(rows)
                                         : quantize::encoded_amax(tensor_.encoding.scheme, rows));
  }
  // Rounding keeps order, so the largest of the rounded is the rounded largest.
  if (runner_.context_.plan.via == Via::kBf16 && !repacks_)
    quantize::round_to_bf16({.data = &largest, .rows = 1, .cols = 1, .stride = 1});
  return largest;
}

ItemRecord TensorEncoder::run() {
  for (std::size_t p = 0; p < planned_.n_parts; ++p)
    parts_.emplace_back(runner_.context_, item_, p);
  TensorHasher source_hasher;
  runner_.input_.resize(
      std::max<std::uint64_t>(runner_.input_.size(), shape_.band_rows * shape_.row_bytes_in()));
  runner_.output_.resize(
      std::max<std::uint64_t>(runner_.output_.size(), shape_.band_rows * shape_.row_bytes_out()));
  runner_.values_.resize(
      std::max<std::uint64_t>(runner_.values_.size(), shape_.tile_rows * shape_.tile_cols));
  runner_.decoded_.resize(runner_.values_.size());
  for (std::uint64_t b = 0; b < shape_.count(); ++b) {
    runner_.context_.check_stop();
    const BandShape::Band band = shape_.band(b);
    const auto buffer = std::span(runner_.input_).first(band.rows * shape_.row_bytes_in());
    const auto codes = runner_.read_codes(tensor_, band.first_row * shape_.row_bytes_in(), buffer);
    {
      const StageTimer timer(runner_.context_.times.hash_ns, runner_.context_.times.hash_bytes,
                             codes.size());
      source_hasher.update(codes);
    }
    encode_band(band, codes);
  }
  write_remaining_parts();
  ItemRecord record{.source = runner_.hash_sources(tensor_, source_hasher.finish()), .output = {}};
  for (PartWriter& part : parts_) record.output.push_back(part.finish());
  record.amax = amax_;
  if (facts_.quantized) {
    if (facts_.group_rows == 0) {
      quality_.blocks = shape_.matrices;
      quality_.exact_blocks = quality_.error2 == 0 ? shape_.matrices : 0;
    }
    record.quality = quality_;
  }
  return record;
}

void TensorEncoder::encode_band(const BandShape::Band& band, std::span<const std::byte> codes) {
  const formats::ScaleReader::Range range = scales_.range_of(band.first_row, band.rows);
  const std::vector<float> scales = scales_.read(range);
  const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
  const std::uint64_t scale_rows =
      planned_.block[0] == 0 ? 0 : ceil_div(band.rows, planned_.block[0]);
  band_scales_.resize(scale_rows * groups_across(shape_.cols) * width);
  // Straight into the window of the output, unless the band is too long for one, straddles two or
  // is cut.
  const std::uint64_t n_bytes = band.rows * shape_.row_bytes_out();
  const std::optional<WindowWriter::Lease> lease = parts_[0].lease_all(n_bytes);
  payload_ =
      lease && lease->n_pieces == 1 ? lease->pieces[0] : std::span(runner_.output_).first(n_bytes);
  {
    const StageTimer timer(runner_.context_.times.compute_ns, runner_.context_.times.compute_bytes,
                           n_bytes);
    const EncodedRows source = source_rows(codes, band, scales, range);
    // Codes under ordinary scales are finite without a look at each value.
    values_are_finite_ =
        !scales.empty() && *std::max_element(scales.begin(), scales.end()) <= kLargestOrdinaryScale;
    for (std::uint64_t row = 0; row < band.rows; row += shape_.tile_rows) {
      for (std::uint64_t col = 0; col < shape_.cols; col += shape_.tile_cols) {
        encode_tile(source, band,
                    {.row = row,
                     .rows = std::min(shape_.tile_rows, band.rows - row),
                     .col = col,
                     .cols = std::min(shape_.tile_cols, shape_.cols - col)});
      }
    }
  }
  if (planned_.find(Part::kQuantBias) != nullptr) add_row_sums(band);
  if (lease) {
    if (lease->n_pieces == 2) lease->fill(payload_);
    parts_[0].commit(*lease);
  } else {
    parts_[0].write(payload_);
  }
  for (std::size_t p = 1; p < planned_.n_parts; ++p) {
    if (planned_.parts[p].part == Part::kScale && facts_.group_rows != 0)
      parts_[p].write(band_scales_);
  }
}

EncodedRows TensorEncoder::tile_of(const EncodedRows& band, const Tile& tile) const {
  EncodedRows rows = band;
  rows.weight += (tile.row * shape_.cols + tile.col) * shape_.source_bits / 8;
  rows.rows = tile.rows;
  rows.cols = tile.cols;
  rows.first_row += tile.row;
  rows.first_col = tile.col;
  return rows;
}

void TensorEncoder::decode_tile(const EncodedRows& source, const BandShape::Band& band,
                                const Tile& tile) {
  const quantize::DecodeFaults faults = from_.decode(
      tile_of(source, tile),
      {.data = runner_.values_.data(), .rows = tile.rows, .cols = tile.cols, .stride = tile.cols});
  if (faults.nan_codes > 0 && !nan_allowed_) {
    throw ItemRunner::nan_code(tensor_, band.first_row + tile.row + faults.first_nan / tile.cols,
                               tile.col + faults.first_nan % tile.cols);
  }
  if (runner_.context_.plan.via == Via::kBf16) {
    quantize::round_to_bf16({.data = runner_.values_.data(),
                             .rows = tile.rows,
                             .cols = tile.cols,
                             .stride = tile.cols});
  }
  if (facts_.quantized && (!values_are_finite_ || faults.nan_codes > 0)) settle_values(band, tile);
}

void TensorEncoder::settle_values(const BandShape::Band& band, const Tile& tile) {
  const formats::MatrixView<float> values{
      .data = runner_.values_.data(), .rows = tile.rows, .cols = tile.cols, .stride = tile.cols};
  const auto found = quantize::first_nonfinite(
      {.data = values.data, .rows = values.rows, .cols = values.cols, .stride = values.stride});
  if (!found) return;
  if (!nonfinite_allowed_ && !nan_allowed_) {
    throw Error(ErrorCode::kNonFinite,
                fmt::format("holds {} at row {}, column {}, which {} cannot hold (accept it with "
                            "--allow 'nonfinite={}': NaN becomes 0, an infinity the largest value "
                            "beside it)",
                            values.data[*found], band.first_row + tile.row + *found / tile.cols,
                            tile.col + *found % tile.cols, facts_.name, tensor_.name));
  }
  quantize::settle_nonfinite(values, planned_.block[0], planned_.block[1]);
}

std::vector<float> TensorEncoder::given_scales(const BandShape::Band& band,
                                               const Tile& tile) const {
  const auto range = release_->range_of(band.first_row + tile.row, tile.rows);
  const std::vector<float> rows = release_->read(range);
  const std::uint64_t first = tile.col / planned_.block[1];
  const std::uint64_t across = groups_across(tile.cols);
  std::vector<float> scales;
  for (std::uint64_t row = 0; row < range.n; ++row) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row * release_->cols() + first);
    scales.insert(scales.end(), begin, begin + static_cast<std::ptrdiff_t>(across));
  }
  return scales;
}

void TensorEncoder::encode_tile(const EncodedRows& source, const BandShape::Band& band,
                                const Tile& tile) {
  const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
  const std::uint64_t across = groups_across(shape_.cols);
  quantize::EncodeOutput out{.weight = payload_.data() + tile.row * shape_.row_bytes_out() +
                                       tile.col * shape_.output_bits / 8,
                             .weight_stride = shape_.row_bytes_out()};
  if (facts_.quantized && facts_.group_rows != 0) {
    out.scales = band_scales_.data() +
                 (tile.row / planned_.block[0] * across + tile.col / planned_.block[1]) * width;
    out.scale_stride = across * width;
  }
  decode_tile(source, band, tile);
  if (repacks_) {
    quantize::repack_mxfp4_as_nvfp4(tile_of(source, tile), global_,
                                    planned_.spelling->global_divides, runner_.context_.plan.encode,
                                    out);
  } else {
    const std::vector<float> given = release_ ? given_scales(band, tile) : std::vector<float>();
    std::span<const float> importance = importance_;
    if (!importance.empty()) importance = importance.subspan(tile.col, tile.cols);
    const quantize::EncodeFaults faults = to_.encode(
        {.values = {.data = runner_.values_.data(),
                    .rows = tile.rows,
                    .cols = tile.cols,
                    .stride = tile.cols},
         .block_rows = planned_.block[0],
         .block_cols = planned_.block[1],
         .global = global_,
         .global_divides = planned_.spelling != nullptr && planned_.spelling->global_divides,
         .given_scales = given,
         .importance = importance,
         .options = runner_.context_.plan.encode},
        out);
    if (faults.overflows > 0 && !overflow_allowed_) {
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("holds a value beyond the largest {} number at row {}, column {} ({} in this "
                      "part of it; accept infinities with --allow 'f16-overflow={}', or use bf16)",
                      facts_.name, band.first_row + tile.row + faults.first_overflow / tile.cols,
                      tile.col + faults.first_overflow % tile.cols, faults.overflows,
                      tensor_.name));
    }
  }
  if (facts_.quantized) measure_tile(tile, out);
}

void TensorEncoder::measure_tile(const Tile& tile, const quantize::EncodeOutput& out) {
  const std::uint64_t across = groups_across(tile.cols);
  std::uint64_t block_rows = planned_.block[0];
  std::uint64_t block_cols = planned_.block[1];
  if (facts_.group_rows == 0) {
    tile_scales_.assign(1, global_);
    block_rows = tile.rows;
    block_cols = tile.cols;
  } else {
    std::optional<formats::GlobalScale> global;
    if (to_.global != nullptr)
      global = {.value = global_, .divides = planned_.spelling->global_divides};
    const std::uint64_t down = ceil_div(tile.rows, block_rows);
    const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
    tile_scales_.resize(down * across);
    for (std::uint64_t row = 0; row < down; ++row) {
      formats::widen_scales(facts_.scale_dtype,
                            {out.scales + row * out.scale_stride, across * width}, global,
                            std::span(tile_scales_).subspan(row * across, across));
    }
  }
  const formats::MatrixView<float> decoded{
      .data = runner_.decoded_.data(), .rows = tile.rows, .cols = tile.cols, .stride = tile.cols};
  // The tile is decoded as a matrix of its own.
  const quantize::DecodeFaults faults = to_.decode({.weight = out.weight,
                                                    .rows = tile.rows,
                                                    .cols = tile.cols,
                                                    .stride = shape_.cols,
                                                    .scales = tile_scales_,
                                                    .rows_per_matrix = tile.rows,
                                                    .scale_cols = ceil_div(tile.cols, block_cols),
                                                    .block_rows = block_rows,
                                                    .block_cols = block_cols},
                                                   decoded);
  INGOT_CHECK(faults.nan_codes == 0);
  for (const float scale : tile_scales_) INGOT_CHECK(scale > 0 && scale <= 0x1.fffffep127F);
  quality_.add(quantize::measure_quality({.values = {.data = runner_.values_.data(),
                                                     .rows = tile.rows,
                                                     .cols = tile.cols,
                                                     .stride = tile.cols},
                                          .decoded = {.data = runner_.decoded_.data(),
                                                      .rows = tile.rows,
                                                      .cols = tile.cols,
                                                      .stride = tile.cols},
                                          .scales = tile_scales_,
                                          .block_rows = block_rows,
                                          .block_cols = block_cols,
                                          .half_top_step = to_.half_top_step}));
}

void TensorEncoder::add_row_sums(const BandShape::Band& band) {
  for (std::uint64_t row = 0; row < band.rows; ++row) {
    const auto codes = payload_.subspan(row * shape_.cols, shape_.cols);
    std::int64_t sum = 0;
    for (const std::byte code : codes) sum += static_cast<std::int8_t>(code);
    row_sums_.push_back(sum);
  }
  const std::size_t before = row_scales_.size();
  row_scales_.resize(before + band.rows);
  formats::widen_scales(facts_.scale_dtype, band_scales_, std::nullopt,
                        std::span(row_scales_).subspan(before));
}

void TensorEncoder::write_remaining_parts() {
  for (std::size_t p = 0; p < planned_.n_parts; ++p) {
    const PlannedPart& part = planned_.parts[p];
    if (parts_[p].written() == part.n_bytes) continue;
    switch (part.part) {
      case Part::kScale:  // one for the whole tensor
      case Part::kGlobal:
        parts_[p].write(std::as_bytes(std::span(&global_, 1)));
        break;
      case Part::kOffset:
        parts_[p].write(std::vector<std::byte>(part.n_bytes));
        break;
      default:
        parts_[p].write(ascend_part(
            part.part,
            {.input = planned_.input, .row_scales = row_scales_, .row_sums = row_sums_}));
    }
  }
}

}  // namespace ingot::convert
