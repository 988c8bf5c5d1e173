#include "convert/run/band_encoder.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "convert/recipe/statistics.h"
#include "formats/base/checked.h"
#include "formats/storage/encoding.h"
#include "quantize/repack.h"
#include "quantize/rows.h"

namespace ingot::convert {

using formats::SchemeId;
using quantize::CodedMatrix;

namespace {

// Times any code, of which 448 is the largest, this is still a number.
constexpr float kLargestOrdinaryScale = 0x1p100F;

// The factors of the moments of a matrix's inputs, for groups of so many columns.
std::vector<quantize::MomentBlock> factors_of(const std::vector<float>& moments,
                                              std::uint64_t group_cols) {
  return quantize::factor_moments(moments,
                                  std::clamp<std::size_t>(group_cols / quantize::kMomentBlock, 1,
                                                          moments.size() / quantize::kMomentBlock));
}

// Puts the values of these columns one after another.
void reorder(float* values, std::span<const std::uint32_t> columns) {
  std::vector<float> ordered(columns.size());
  for (std::size_t place = 0; place < columns.size(); ++place)
    ordered[place] = values[columns[place]];
  std::ranges::copy(ordered, values);
}

// Puts codes of 4 bits, the first of a pair in the lower half of its byte, back to these columns.
void put_back(std::byte* codes, std::span<const std::uint32_t> columns) {
  std::vector<std::byte> row(columns.size() / 2);
  for (std::size_t place = 0; place < columns.size(); ++place) {
    const std::byte code = codes[place / 2] >> (place % 2 * 4) & std::byte{0xF};
    row[columns[place] / 2] |= code << (columns[place] % 2 * 4);
  }
  std::ranges::copy(row, codes);
}

formats::MatrixView<float> view(std::vector<float>& buffer, const Tile& tile) {
  return {.data = buffer.data(), .rows = tile.rows, .cols = tile.cols, .stride = tile.cols};
}

}  // namespace

float stored_global(const formats::ScaleReader& scales) {
  return scales.global() ? scales.global()->value : scales.read({.first = 0, .n = 1}).front();
}

formats::ScalePolicy PlannedValues::scale_policy() const {
  return {.allow_zero = any_matches(plan.recipe.allow.zero_scale, tensor.name)};
}

bool PlannedValues::allows_nan() const {
  return any_matches(plan.recipe.allow.nan_code, tensor.name);
}

Error PlannedValues::nan_code(std::uint64_t row, std::uint64_t col) const {
  return Error(ErrorCode::kNonFinite,
               "holds a NaN code at row {}, column {} (fetch the file again, or accept it with "
               "--allow 'nan-code={}')",
               row, col, tensor.name);
}

void PlannedValues::require_held(std::uint64_t first_row, std::uint64_t first_col,
                                 formats::MatrixView<const float> values,
                                 formats::MatrixView<const float> became) const {
  if (!lossless_only) return;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      const float before = values.row(r)[c], after = became.row(r)[c];
      if (before == after || (std::isnan(before) && std::isnan(after))) continue;
      throw ValueLost(ErrorCode::kMismatch,
                      fmt::format("would lose values as {}: {:.9g} at row {}, column {} becomes "
                                  "{:.9g} (keep it with --rule '{}=keep', or choose another "
                                  "scheme)",
                                  formats::scheme_facts(planned.to).name, before, first_row + r,
                                  first_col + c, after, tensor.name));
    }
  }
}

quantize::CodedMatrix PlannedValues::rows_of(const BandPlan& bands, const Band& band,
                                             std::span<const std::byte> values) const {
  const formats::Encoding& encoding = tensor.encoding;
  return {.scheme = encoding.scheme,
          .codes = values.data(),
          .rows = band.rows,
          .cols = band.cols,
          .row_bytes = band.cols * bands.source_bits / 8,
          .first_row = band.first_row,
          .first_col = band.first_col,
          .rows_per_matrix = bands.rows,
          .scale_cols = encoding.block_cols == 0 ? 0 : ceil_div(bands.cols, encoding.block_cols),
          .block_rows = encoding.block_rows,
          .block_cols = encoding.block_cols};
}

void BandScales::undo(const formats::ScaleReader& reader, CodedMatrix& rows) const {
  rows.scales = scales;
  rows.zeros = zeros;
  rows.group_order = reader.group_order();
  rows.column_factors = reader.column_factors();
  rows.first_scale_row = range.first;
  rows.scale_cols = reader.cols();
}

void HeldValues::see_words(std::span<const std::byte> words, std::size_t width) {
  for (std::size_t at = 0; at < words.size() && !is_held_; at += width) {
    // Little-endian: the sign is the first bit of the last byte.
    std::byte bits = words[at + width - 1] & std::byte{0x7F};
    for (std::size_t i = 0; i + 1 < width; ++i) bits |= words[at + i];
    is_held_ = bits != std::byte{0};
  }
}

void HeldValues::see_values(formats::MatrixView<const float> values) {
  for (std::size_t row = 0; row < values.rows && !is_held_; ++row) {
    is_held_ = std::any_of(values.row(row), values.row(row) + values.cols,
                           [](float value) { return value != 0; });
  }
}

void HeldValues::count(std::span<const float> values) {
  for (const float value : values) lost_ += value != 0 && std::isfinite(value) ? 1U : 0U;
}

void HeldValues::require_some(const formats::LogicalTensor& tensor, formats::SchemeId to,
                              const std::vector<Pattern>& allowed) const {
  if (is_held_ || lost_ == 0 || any_matches(allowed, tensor.name)) return;
  throw Error(ErrorCode::kUnsupported,
              "would be all zeros in {1}: all of its {2} numbers other than zero are below the "
              "range of {1} (leave it as it is with --rule '{0}=keep', use {3}, or accept zeros "
              "with --allow 'underflow={0}')",
              tensor.name, formats::scheme_facts(to).name, lost_,
              to == SchemeId::kBf16 ? "f32" : "bf16");
}

BandEncoder::BandEncoder(const PlannedValues& of, std::optional<float> amax, TileBuffers& tiles,
                         MomentsFactors::Lease* lease)
    : of_(of),
      plan_(of.plan),
      planned_(of.planned),
      tensor_(of.tensor),
      tiles_(tiles),
      to_(*quantize::find_scheme(planned_.to)),
      bands_(BandPlan::to_encode(tensor_, planned_.to, planned_.block, planned_.takes_whole_rows(),
                                 planned_.by_moments)),
      scales_(of.source, tensor_, of.scale_policy()),
      facts_(formats::scheme_facts(planned_.to)),
      options_(options_for(to_, plan_.target.encode)),
      repacks_(can_repack()),
      lease_(lease),
      amax_(amax),
      nan_allowed_(of.allows_nan()),
      nonfinite_allowed_(any_matches(plan_.recipe.allow.nonfinite, tensor_.name)),
      overflow_allowed_(any_matches(plan_.recipe.allow.f16_overflow, tensor_.name)),
      by_group_(columns_by_group()) {
  const Choices& choices = plan_.recipe.choices;
  if (planned_.scales != PlannedTensor::kNone)
    release_.emplace(*choices.scales_from, choices.scales_from->tensors()[planned_.scales]);
  if (of.keeps_global) {
    global_ = stored_global(scales_);
  } else if (amax && to_.global != nullptr) {
    const bool divides = planned_.storage->global_divides;
    global_ =
        repacks_ ? quantize::repacked_global(*amax, divides) : to_.global(*amax, options_, divides);
  }
  const std::uint64_t n_values = bands_.tile_rows * bands_.tile_cols;
  tiles_.values.resize(std::max<std::uint64_t>(tiles_.values.size(), n_values));
  tiles_.decoded.resize(tiles_.values.size());
  if (!planned_.is_changed) return;
  changer_.emplace(plan_.changes_of(planned_), bands_.rows);
  tiles_.before.resize(tiles_.values.size());
}

// Codes are made of the columns in the order of their groups, and then go to their own places.
std::vector<std::uint32_t> BandEncoder::columns_by_group() const {
  const std::span<const std::uint32_t> order = scales_.group_order();
  if (!planned_.keeps_group_order || order.empty()) return {};
  std::vector<std::uint32_t> columns(order.size());
  for (std::uint32_t col = 0; col < columns.size(); ++col) columns[col] = col;
  std::ranges::stable_sort(columns, {}, [&](std::uint32_t col) { return order[col]; });
  for (std::size_t place = 0; place < columns.size(); ++place) {
    if (order[columns[place]] == place / planned_.block[1]) continue;
    throw Error(ErrorCode::kUnsupported,
                "changes, and its groups of columns have other sizes than {} (give it another "
                "scheme with --to or --rule, or --keep-touched bf16)",
                planned_.block[1]);
  }
  return columns;
}

template <typename Act>
void BandEncoder::for_each_tile(const Band& band, const Act& act) const {
  for (std::uint64_t row = 0; row < band.rows; row += bands_.tile_rows) {
    for (std::uint64_t col = 0; col < bands_.cols; col += bands_.tile_cols) {
      act(Tile{.row = row,
               .rows = std::min(bands_.tile_rows, band.rows - row),
               .col = col,
               .cols = std::min(bands_.tile_cols, bands_.cols - col)});
    }
  }
}

void BandEncoder::begin_matrix(std::uint64_t matrix) {
  if (matrix_ == matrix) return;
  matrix_ = matrix;
  factor_ = lease_ == nullptr ? nullptr : lease_->factor(matrix);
  carries_errors_ |= factor_ != nullptr;
  moments_.clear();
  importance_.clear();
  if (!planned_.is_weighted) return;
  const Importance& importance = *plan_.recipe.choices.importance;
  const formats::CalibrationStatistics& file = importance.file();
  const auto find = [&](std::string_view ending) {
    return input_statistic(importance, plan_.source, tensor_, matrix, ending);
  };
  const auto* const blocks = planned_.by_moments ? find(formats::kInputBlockMoments) : nullptr;
  if (blocks == nullptr) {
    const auto* const squares = find(formats::kInputMeanSquare);
    if (squares == nullptr) return;
    importance_ = file.values(*squares);
    if (!by_group_.empty()) reorder(importance_.data(), by_group_);
    return;
  }
  try {
    moments_ = factors_of(file.values(*blocks), planned_.block[1]);
  } catch (Error& error) {
    error.in_tensor(fmt::format("{}{}", input_modules(plan_.source, tensor_, matrix).front(),
                                formats::kInputBlockMoments));
    throw error.in_file(file.path().string());
  }
}

void BandEncoder::begin_change(const CodedMatrix& source, const Band& band) {
  if (!changer_) return;
  changer_->begin(band);
  if (changer_->needs_matrix()) {
    see_matrix(band.first_row / bands_.rows);
    changer_->begin(band);
  }
  if (!changer_->needs_lengths()) return;
  see_band(source, band);
  changer_->end_of_rows();
}

void BandEncoder::see_band(const CodedMatrix& source, const Band& band) {
  for_each_tile(band, [&](const Tile& tile) {
    quantize::decode(tile.of(source), values(tile));
    changer_->see(tile.row, tile.col, values(tile));
  });
}

// Bands of whole rows, as bands of values that change are.
void BandEncoder::see_matrix(std::uint64_t matrix) {
  std::vector<std::byte> codes;
  for (std::uint64_t row = 0; row < bands_.rows; row += bands_.band_rows) {
    const std::uint64_t n_rows = std::min(bands_.band_rows, bands_.rows - row);
    const Band band{.first_row = matrix * bands_.rows + row, .rows = n_rows, .cols = bands_.cols};
    codes.resize(n_rows * bands_.row_bytes_in());
    of_.source.read(tensor_.encoding.stored.weight(), band.first_row * bands_.row_bytes_in(),
                    codes);
    const BandScales scales(scales_, scales_.range_of(band.first_row, n_rows));
    CodedMatrix rows = of_.rows_of(bands_, band, codes);
    scales.undo(scales_, rows);
    changer_->begin(band);
    see_band(rows, band);
  }
  changer_->end_of_matrix();
}

float BandEncoder::largest(const Band& band, std::span<const std::byte> codes) {
  const BandScales scales(scales_, scales_.range_of(band.first_row, band.rows));
  CodedMatrix rows = of_.rows_of(bands_, band, codes);
  scales.undo(scales_, rows);
  if (changer_) {
    float largest = 0;
    begin_change(rows, band);
    for_each_tile(band, [&](const Tile& tile) {
      read_tile(rows, band, tile);
      largest = std::max(largest, quantize::amax(values(tile)));
    });
    return largest;
  }
  float largest = repacks_ ? quantize::largest_mxfp4_scale(rows) : quantize::encoded_amax(rows);
  // Rounding keeps order, so the largest of the rounded is the rounded largest.
  if (plan_.target.via == Via::kBf16 && !repacks_)
    quantize::round_to_bf16({.data = &largest, .rows = 1, .cols = 1, .stride = 1});
  return largest;
}

void BandEncoder::encode(const Band& band, std::span<const std::byte> codes,
                         std::span<std::byte> out) {
  begin_matrix(input_matrices(tensor_) == 1 ? 0 : band.first_row / bands_.rows);
  const BandScales read(scales_, scales_.range_of(band.first_row, band.rows));
  const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
  const std::uint64_t scale_rows =
      planned_.block[0] == 0 ? 0 : ceil_div(band.rows, planned_.block[0]);
  band_scales_.resize(scale_rows * groups_across(bands_.cols) * width);
  if (planned_.adds_zero_points) band_zeros_.resize(scale_rows * groups_across(bands_.cols));
  codes_ = out;
  CodedMatrix source = of_.rows_of(bands_, band, codes);
  read.undo(scales_, source);
  // Codes under ordinary scales are finite without a look at each value, and those of other FP8
  // may be infinite.
  const bool may_be_finite = is_quantized(tensor_.encoding.scheme) && !read.scales.empty();
  values_are_finite_ = may_be_finite && std::ranges::all_of(read.scales, [](float scale) {
                         return std::fabs(scale) <= kLargestOrdinaryScale;
                       });
  begin_change(source, band);
  for_each_tile(band, [&](const Tile& tile) { encode_tile(source, band, tile); });
}

// MXFP4 becomes NVFP4 without rounding where all tensors of the fused set can.
bool BandEncoder::can_repack() const {
  if (planned_.to != SchemeId::kNvfp4 || planned_.fused_set == PlannedTensor::kNone) return false;
  return std::ranges::all_of(plan_.fused_sets[planned_.fused_set], [&](std::uint32_t index) {
    const PlannedTensor& planned = plan_.tensors[index];
    return plan_.tensor_of(planned).encoding.scheme == SchemeId::kMxfp4 && !planned.is_changed;
  });
}

void BandEncoder::read_tile(const CodedMatrix& source, const Band& band, const Tile& tile) {
  const quantize::DecodeFaults faults = quantize::decode(tile.of(source), values(tile));
  if (faults.nan_codes > 0 && !nan_allowed_) {
    throw of_.nan_code(band.first_row + tile.row + faults.first_nan / tile.cols,
                       tile.col + faults.first_nan % tile.cols);
  }
  if (is_read_only(tensor_.encoding.scheme) && !nan_allowed_) require_finite_codes(band, tile);
  if (faults.nan_codes > 0) values_are_finite_ = false;
  if (changer_) {
    std::copy_n(values(tile).data, tile.rows * tile.cols, tiles_.before.data());
    changer_->apply(tile.row, tile.col, values(tile));
  }
  for (std::size_t row = 0; row < tile.rows && held_.is_open(); ++row)
    held_.count({values(tile).row(row), tile.cols});
  if (plan_.target.via == Via::kBf16) {
    if (of_.lossless_only)
      std::copy_n(values(tile).data, tile.rows * tile.cols, decoded(tile).data);
    quantize::round_to_bf16(values(tile));
    of_.require_held(band.first_row + tile.row, tile.col, decoded(tile), values(tile));
  }
}

void BandEncoder::decode_tile(const CodedMatrix& source, const Band& band, const Tile& tile) {
  read_tile(source, band, tile);
  for (std::size_t row = 0; row < tile.rows && !by_group_.empty(); ++row) {
    reorder(values(tile).row(row), by_group_);
    if (changer_) reorder(view(tiles_.before, tile).row(row), by_group_);
  }
  if (facts_.quantized && !values_are_finite_) replace_nonfinite(band, tile);
}

// Judges the values of codes that may be NaN or infinite in several ways.
void BandEncoder::require_finite_codes(const Band& band, const Tile& tile) const {
  const auto found = first_nonfinite(tile);
  if (!found) return;
  throw Error(
      ErrorCode::kNonFinite,
      "holds a code that decodes to {} at row {}, column {} (fetch the file again, or accept "
      "it with --allow 'nan-code={}')",
      values(tile).data[*found], band.first_row + tile.row + *found / tile.cols,
      tile.col + *found % tile.cols, tensor_.name);
}

// The first value of a tile that is NaN or infinite.
std::optional<std::uint64_t> BandEncoder::first_nonfinite(const Tile& tile) const {
  return quantize::first_nonfinite(
      {.data = values(tile).data, .rows = tile.rows, .cols = tile.cols, .stride = tile.cols});
}

void BandEncoder::replace_nonfinite(const Band& band, const Tile& tile) {
  const formats::MatrixView<float> tile_values = values(tile);
  const auto found = first_nonfinite(tile);
  if (!found) return;
  if (!nonfinite_allowed_ && !nan_allowed_) {
    throw Error(ErrorCode::kNonFinite,
                "holds {} at row {}, column {}, which {} cannot hold (accept it with --allow "
                "'nonfinite={}': NaN becomes 0, an infinity the largest value of its scale group)",
                tile_values.data[*found], band.first_row + tile.row + *found / tile.cols,
                tile.col + *found % tile.cols, facts_.name, tensor_.name);
  }
  // A tile is only a part of the tensor that shares a scale.
  if (facts_.group_rows == 0 && amax_) {
    quantize::settle_nonfinite(tile_values, *amax_);
  } else {
    quantize::settle_nonfinite(tile_values, planned_.block[0], planned_.block[1]);
  }
}

std::vector<float> BandEncoder::given_scales(const Band& band, const Tile& tile) const {
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

quantize::EncodeFaults BandEncoder::encode_values(const quantize::EncodeInput& in,
                                                  const quantize::EncodeOutput& out) const {
  if (factor_ == nullptr) return to_.encode(in, out);
  // The search counts an error as much as the input that it meets, whatever else is known of it.
  quantize::EncodeInput weighted = in;
  weighted.importance = factor_->mean_squares();
  quantize::encode_carrying_errors(to_, weighted, *factor_, out);
  return {};
}

void BandEncoder::encode_tile(const CodedMatrix& source, const Band& band, const Tile& tile) {
  const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
  const std::uint64_t across = groups_across(bands_.cols);
  quantize::EncodeOutput out{.weight = codes_.data() + tile.row * bands_.row_bytes_out() +
                                       tile.col * bands_.output_bits / 8,
                             .weight_stride = bands_.row_bytes_out()};
  if (facts_.quantized && facts_.group_rows != 0) {
    out.scales = band_scales_.data() +
                 (tile.row / planned_.block[0] * across + tile.col / planned_.block[1]) * width;
    out.scale_stride = across * width;
    if (planned_.adds_zero_points) {
      out.zeros =
          band_zeros_.data() + tile.row / planned_.block[0] * across + tile.col / planned_.block[1];
      out.zero_stride = across;
    }
  }
  decode_tile(source, band, tile);
  if (repacks_) {
    quantize::repack_mxfp4_as_nvfp4(tile.of(source), global_, planned_.storage->global_divides,
                                    options_, out);
  } else {
    const std::vector<float> given = release_ ? given_scales(band, tile) : std::vector<float>();
    std::span<const float> importance = importance_;
    if (!importance.empty()) importance = importance.subspan(tile.col, tile.cols);
    std::span<const quantize::MomentBlock> moments = moments_;
    if (!moments.empty()) {
      moments =
          moments.subspan(tile.col / quantize::kMomentBlock, tile.cols / quantize::kMomentBlock);
    }
    const quantize::EncodeFaults faults = encode_values(
        {.values = values(tile),
         .block_rows = planned_.block[0],
         .block_cols = planned_.block[1],
         .global = global_,
         .global_divides = planned_.storage != nullptr && planned_.storage->global_divides,
         .given_scales = given,
         .importance = importance,
         .moments = moments,
         .keeps_values = formats::is_quantized(tensor_.encoding.scheme),
         .options = options_},
        out);
    if (faults.overflows > 0 && !overflow_allowed_) {
      throw Error(ErrorCode::kNonFinite,
                  "holds a value beyond the largest {} number at row {}, column {} ({} in this "
                  "part of it; accept infinities with --allow 'f16-overflow={}', or use bf16)",
                  facts_.name, band.first_row + tile.row + faults.first_overflow / tile.cols,
                  tile.col + faults.first_overflow % tile.cols, faults.overflows, tensor_.name);
    }
  }
  const std::size_t word = bands_.output_bits / 8;
  if (facts_.quantized) {
    measure_tile(tile, out);
    held_.see_values(decoded(tile));
  } else {
    for (std::size_t row = 0; row < tile.rows && held_.is_open(); ++row)
      held_.see_words({out.weight + row * out.weight_stride, tile.cols * word}, word);
  }
  if (!facts_.quantized && (of_.lossless_only || changer_)) {
    quantize::decode({.scheme = planned_.to,
                      .codes = out.weight,
                      .rows = tile.rows,
                      .cols = tile.cols,
                      .row_bytes = out.weight_stride},
                     decoded(tile));
  }
  of_.require_held(band.first_row + tile.row, tile.col, values(tile), decoded(tile));
  if (changer_) {
    quantize::add_fields(change_sums_, quantize::measure_change(view(tiles_.before, tile),
                                                                values(tile), decoded(tile)));
  }
  for (std::size_t row = 0; row < tile.rows && !by_group_.empty(); ++row)
    put_back(out.weight + row * out.weight_stride, by_group_);
}

void BandEncoder::measure_tile(const Tile& tile, const quantize::EncodeOutput& out) {
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
      global = {.value = global_, .divides = planned_.storage->global_divides};
    const std::uint64_t down = ceil_div(tile.rows, block_rows);
    const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
    tile_scales_.resize(down * across);
    tile_zeros_.clear();
    for (std::uint64_t row = 0; row < down; ++row) {
      if (out.zeros != nullptr) {
        const std::uint8_t* zeros = out.zeros + row * out.zero_stride;
        tile_zeros_.insert(tile_zeros_.end(), zeros, zeros + across);
      }
      formats::widen_scales(facts_.scale_dtype,
                            {out.scales + row * out.scale_stride, across * width}, global,
                            std::span(tile_scales_).subspan(row * across, across));
    }
  }
  // The tile is decoded as a matrix of its own.
  const quantize::DecodeFaults faults =
      quantize::decode({.scheme = planned_.to,
                        .codes = out.weight,
                        .rows = tile.rows,
                        .cols = tile.cols,
                        .row_bytes = out.weight_stride,
                        .scales = tile_scales_,
                        .scale_cols = ceil_div(tile.cols, block_cols),
                        .block_rows = block_rows,
                        .block_cols = block_cols,
                        .zeros = tile_zeros_},
                       decoded(tile));
  INGOT_CHECK(faults.nan_codes == 0);
  for (const float scale : tile_scales_)
    INGOT_CHECK(std::isfinite(scale) && (scale > 0 || (scale < 0 && facts_.has_signed_scales)));
  quality_.add(quantize::measure_quality({.values = values(tile),
                                          .decoded = decoded(tile),
                                          .scales = tile_scales_,
                                          .block_rows = block_rows,
                                          .block_cols = block_cols,
                                          .half_top_step = quantize::half_top_step(planned_.to)}));
}

std::uint64_t BandEncoder::groups_across(std::uint64_t cols) const {
  return planned_.block[1] == 0 ? 0 : ceil_div(cols, planned_.block[1]);
}

formats::MatrixView<float> BandEncoder::values(const Tile& tile) const {
  return view(tiles_.values, tile);
}

formats::MatrixView<float> BandEncoder::decoded(const Tile& tile) const {
  return view(tiles_.decoded, tile);
}

}  // namespace ingot::convert
