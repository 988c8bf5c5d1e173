#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "convert/recipe/statistics.h"
#include "convert/run/actions.h"
#include "formats/base/checked.h"
#include "quantize/repack.h"
#include "quantize/rows.h"

namespace ingot::convert {

using formats::Part;
using formats::SchemeId;
using quantize::EncodedRows;

namespace {

// Times any code, of which 448 is the largest, this is still a number.
constexpr float kLargestOrdinaryScale = 0x1p100F;

// Rows and columns of a band that are decoded and encoded while in cache.
struct Tile {
  std::uint64_t row = 0, rows = 0;  // within the band
  std::uint64_t col = 0, cols = 0;
};

// Decodes and encodes one tensor: band by band from the file, tile by tile in cache.
class Encoder {
 public:
  Encoder(const TensorTask& task, std::optional<float> amax)
      : task_(task),
        plan_(task.context.plan),
        planned_(task.planned),
        tensor_(task.tensor),
        from_(*quantize::find_scheme(tensor_.encoding.scheme)),
        to_(*quantize::find_scheme(planned_.to)),
        bands_(BandPlan::to_encode(tensor_, planned_.to, planned_.block)),
        scales_(task.context.plan.source, tensor_, task.scale_policy()),
        facts_(formats::scheme_facts(planned_.to)),
        amax_(amax),
        repacks_(repacks()),
        nan_allowed_(task.allows_nan()),
        nonfinite_allowed_(any_matches(task.context.plan.recipe.allow.nonfinite, tensor_.name)),
        overflow_allowed_(any_matches(task.context.plan.recipe.allow.f16_overflow, tensor_.name)) {
    const Choices& choices = task.context.plan.recipe.choices;
    if (planned_.scales != PlannedTensor::kNone)
      release_.emplace(*choices.scales_from, choices.scales_from->tensors()[planned_.scales]);
    if (planned_.is_weighted) {
      const auto place = choices.importance->find(formats::module_name(tensor_.name));
      importance_ = choices.importance->values(place.value());
    }
    if (amax_ && to_.global != nullptr) {
      const bool divides = planned_.storage->global_divides;
      global_ = repacks_ ? quantize::repacked_global(*amax_, divides)
                         : to_.global(*amax_, plan_.target.encode, divides);
    }
  }

  float largest() {
    float largest = 0;
    task_.loop.look(
        tensor_.encoding.stored.weight(), bands_,
        [&](const Band& band, std::span<const std::byte> codes) {
          const formats::ScaleReader::Range range = scales_.range_of(band.first_row, band.rows);
          const BandScales scales = read_scales(range);
          const StageTimer timer(task_.context.times.compute, 0);
          const EncodedRows rows = rows_of(band, codes, scales);
          largest =
              std::max(largest, repacks_ ? quantize::largest_mxfp4_scale(rows)
                                         : quantize::encoded_amax(tensor_.encoding.scheme, rows));
        });
    // Rounding keeps order, so the largest of the rounded is the rounded largest.
    if (plan_.target.via == Via::kBf16 && !repacks_)
      quantize::round_to_bf16({.data = &largest, .rows = 1, .cols = 1, .stride = 1});
    return largest;
  }

  TensorResult run() {
    for (std::size_t p = 0; p < planned_.n_parts; ++p) parts_.push_back(task_.part(p));
    const std::uint64_t n_values = bands_.tile_rows * bands_.tile_cols;
    task_.tiles.values.resize(std::max<std::uint64_t>(task_.tiles.values.size(), n_values));
    task_.tiles.decoded.resize(task_.tiles.values.size());
    const auto write_scales = [this] {
      for (std::size_t p = 1; p < planned_.n_parts; ++p) {
        if (planned_.parts[p].part == Part::kScale && facts_.group_rows != 0)
          parts_[p].write(band_scales_);
      }
    };
    const Hash128 weight = task_.loop.recode(
        tensor_.encoding.stored.weight(), bands_, parts_[0],
        [this](const Band& band, std::span<const std::byte> codes, std::span<std::byte> out) {
          encode_band(band, codes, out);
        },
        write_scales);
    write_remaining_parts();
    TensorResult result{.source = task_.source_hashes({{Part::kWeight, weight}}), .output = {}};
    for (PartWriter& part : parts_) result.output.push_back(part.finish());
    result.amax = amax_;
    if (facts_.quantized) {
      if (facts_.group_rows == 0) {
        quality_.blocks = bands_.matrices;
        quality_.exact_blocks = quality_.error2 == 0 ? bands_.matrices : 0;
      }
      result.quality = quality_;
    }
    return result;
  }

 private:
  // MXFP4 becomes NVFP4 without rounding where all tensors of the fused set can.
  bool repacks() const {
    if (planned_.to != SchemeId::kNvfp4 || planned_.fused_set == PlannedTensor::kNone) return false;
    return std::ranges::all_of(plan_.fused_sets[planned_.fused_set], [&](std::uint32_t index) {
      const std::uint32_t tensor = plan_.tensors[index].tensor;
      return task_.context.plan.source.tensors()[tensor].encoding.scheme == SchemeId::kMxfp4;
    });
  }

  // What undoes the codes of a band.
  struct BandScales {
    formats::ScaleReader::Range range;
    std::vector<float> scales;
    std::vector<std::uint8_t> zeros;
  };

  BandScales read_scales(formats::ScaleReader::Range range) const {
    return {.range = range, .scales = scales_.read(range), .zeros = scales_.read_zeros(range)};
  }

  EncodedRows rows_of(const Band& band, std::span<const std::byte> codes,
                      const BandScales& scales) const {
    EncodedRows rows = task_.rows_of(bands_, band, codes);
    rows.scales = scales.scales;
    rows.zeros = scales.zeros;
    rows.group_order = scales_.group_order();
    rows.first_scale_row = scales.range.first;
    rows.scale_cols = scales_.cols();
    return rows;
  }

  void encode_band(const Band& band, std::span<const std::byte> codes, std::span<std::byte> out) {
    const BandScales read = read_scales(scales_.range_of(band.first_row, band.rows));
    const std::vector<float>& scales = read.scales;
    const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
    const std::uint64_t scale_rows =
        planned_.block[0] == 0 ? 0 : ceil_div(band.rows, planned_.block[0]);
    band_scales_.resize(scale_rows * groups_across(bands_.cols) * width);
    codes_ = out;
    const EncodedRows source = rows_of(band, codes, read);
    // Codes under ordinary scales are finite without a look at each value.
    values_are_finite_ = !scales.empty() && std::ranges::all_of(scales, [](float scale) {
      return std::fabs(scale) <= kLargestOrdinaryScale;
    });
    for (std::uint64_t row = 0; row < band.rows; row += bands_.tile_rows) {
      for (std::uint64_t col = 0; col < bands_.cols; col += bands_.tile_cols) {
        encode_tile(source, band,
                    {.row = row,
                     .rows = std::min(bands_.tile_rows, band.rows - row),
                     .col = col,
                     .cols = std::min(bands_.tile_cols, bands_.cols - col)});
      }
    }
    if (planned_.find(Part::kQuantBias) != nullptr) add_row_sums(band);
  }

  EncodedRows tile_of(const EncodedRows& band, const Tile& tile) const {
    EncodedRows rows = band;
    rows.weight += (tile.row * bands_.cols + tile.col) * bands_.source_bits / 8;
    rows.rows = tile.rows;
    rows.cols = tile.cols;
    rows.first_row += tile.row;
    rows.first_col = tile.col;
    return rows;
  }

  void decode_tile(const EncodedRows& source, const Band& band, const Tile& tile) {
    const quantize::DecodeFaults faults = from_.decode(tile_of(source, tile), values(tile));
    if (faults.nan_codes > 0 && !nan_allowed_) {
      throw task_.nan_code(band.first_row + tile.row + faults.first_nan / tile.cols,
                           tile.col + faults.first_nan % tile.cols);
    }
    if (plan_.target.via == Via::kBf16) {
      quantize::round_to_bf16(values(tile));
    }
    if (facts_.quantized && (!values_are_finite_ || faults.nan_codes > 0))
      replace_nonfinite(band, tile);
  }

  void replace_nonfinite(const Band& band, const Tile& tile) {
    const formats::MatrixView<float> tile_values = values(tile);
    const auto found = quantize::first_nonfinite(
        {.data = tile_values.data, .rows = tile.rows, .cols = tile.cols, .stride = tile.cols});
    if (!found) return;
    if (!nonfinite_allowed_ && !nan_allowed_) {
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("holds {} at row {}, column {}, which {} cannot hold (accept it with "
                      "--allow 'nonfinite={}': NaN becomes 0, an infinity the largest value "
                      "beside it)",
                      tile_values.data[*found], band.first_row + tile.row + *found / tile.cols,
                      tile.col + *found % tile.cols, facts_.name, tensor_.name));
    }
    quantize::settle_nonfinite(tile_values, planned_.block[0], planned_.block[1]);
  }

  std::vector<float> given_scales(const Band& band, const Tile& tile) const {
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

  void encode_tile(const EncodedRows& source, const Band& band, const Tile& tile) {
    const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
    const std::uint64_t across = groups_across(bands_.cols);
    quantize::EncodeOutput out{.weight = codes_.data() + tile.row * bands_.row_bytes_out() +
                                         tile.col * bands_.output_bits / 8,
                               .weight_stride = bands_.row_bytes_out()};
    if (facts_.quantized && facts_.group_rows != 0) {
      out.scales = band_scales_.data() +
                   (tile.row / planned_.block[0] * across + tile.col / planned_.block[1]) * width;
      out.scale_stride = across * width;
    }
    decode_tile(source, band, tile);
    if (repacks_) {
      quantize::repack_mxfp4_as_nvfp4(tile_of(source, tile), global_,
                                      planned_.storage->global_divides, plan_.target.encode, out);
    } else {
      const std::vector<float> given = release_ ? given_scales(band, tile) : std::vector<float>();
      std::span<const float> importance = importance_;
      if (!importance.empty()) importance = importance.subspan(tile.col, tile.cols);
      const quantize::EncodeFaults faults = to_.encode(
          {.values = values(tile),
           .block_rows = planned_.block[0],
           .block_cols = planned_.block[1],
           .global = global_,
           .global_divides = planned_.storage != nullptr && planned_.storage->global_divides,
           .given_scales = given,
           .importance = importance,
           .options = plan_.target.encode},
          out);
      if (faults.overflows > 0 && !overflow_allowed_) {
        throw Error(
            ErrorCode::kNonFinite,
            fmt::format(
                "holds a value beyond the largest {} number at row {}, column {} ({} in this "
                "part of it; accept infinities with --allow 'f16-overflow={}', or use bf16)",
                facts_.name, band.first_row + tile.row + faults.first_overflow / tile.cols,
                tile.col + faults.first_overflow % tile.cols, faults.overflows, tensor_.name));
      }
    }
    if (facts_.quantized) measure_tile(tile, out);
  }

  void measure_tile(const Tile& tile, const quantize::EncodeOutput& out) {
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
      for (std::uint64_t row = 0; row < down; ++row) {
        formats::widen_scales(facts_.scale_dtype,
                              {out.scales + row * out.scale_stride, across * width}, global,
                              std::span(tile_scales_).subspan(row * across, across));
      }
    }
    // The tile is decoded as a matrix of its own.
    const quantize::DecodeFaults faults = to_.decode({.weight = out.weight,
                                                      .rows = tile.rows,
                                                      .cols = tile.cols,
                                                      .stride = bands_.cols,
                                                      .scales = tile_scales_,
                                                      .rows_per_matrix = tile.rows,
                                                      .scale_cols = ceil_div(tile.cols, block_cols),
                                                      .block_rows = block_rows,
                                                      .block_cols = block_cols},
                                                     decoded(tile));
    INGOT_CHECK(faults.nan_codes == 0);
    for (const float scale : tile_scales_)
      INGOT_CHECK(std::isfinite(scale) && (scale > 0 || (scale < 0 && facts_.has_signed_scales)));
    quality_.add(quantize::measure_quality({.values = values(tile),
                                            .decoded = decoded(tile),
                                            .scales = tile_scales_,
                                            .block_rows = block_rows,
                                            .block_cols = block_cols,
                                            .half_top_step = to_.half_top_step}));
  }

  void add_row_sums(const Band& band) {
    for (std::uint64_t row = 0; row < band.rows; ++row) {
      const auto codes = codes_.subspan(row * bands_.cols, bands_.cols);
      std::int64_t sum = 0;
      for (const std::byte code : codes) sum += static_cast<std::int8_t>(code);
      row_sums_.push_back(sum);
    }
    const std::size_t before = row_scales_.size();
    row_scales_.resize(before + band.rows);
    formats::widen_scales(facts_.scale_dtype, band_scales_, std::nullopt,
                          std::span(row_scales_).subspan(before));
  }

  void write_remaining_parts() {
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
        case Part::kDimensions:
          parts_[p].write(dimensions_part(plan_, planned_, part.dtype));
          break;
        default:
          parts_[p].write(ascend_part(
              part.part,
              {.input = planned_.input, .row_scales = row_scales_, .row_sums = row_sums_}));
      }
    }
  }

  [[nodiscard]] std::uint64_t groups_across(std::uint64_t cols) const {
    return planned_.block[1] == 0 ? 0 : ceil_div(cols, planned_.block[1]);
  }
  // The values of a tile, as they were and as they became.
  [[nodiscard]] formats::MatrixView<float> values(const Tile& tile) const {
    return view(task_.tiles.values, tile);
  }
  [[nodiscard]] formats::MatrixView<float> decoded(const Tile& tile) const {
    return view(task_.tiles.decoded, tile);
  }
  static formats::MatrixView<float> view(std::vector<float>& buffer, const Tile& tile) {
    return {.data = buffer.data(), .rows = tile.rows, .cols = tile.cols, .stride = tile.cols};
  }

  const TensorTask& task_;
  const Plan& plan_;
  const PlannedTensor& planned_;
  const formats::LogicalTensor& tensor_;
  const quantize::Scheme& from_;
  const quantize::Scheme& to_;
  const BandPlan bands_;
  const formats::ScaleReader scales_;
  const formats::SchemeFacts& facts_;  // of the target
  std::optional<formats::ScaleReader> release_;
  std::optional<float> amax_;
  bool repacks_ = false;
  float global_ = 1;
  bool values_are_finite_ = false;  // of the band at hand, NaN codes apart
  bool nan_allowed_ = false, nonfinite_allowed_ = false, overflow_allowed_ = false;

  std::span<std::byte> codes_;          // of the band at hand
  std::vector<float> importance_;       // of the columns; empty without
  std::vector<std::byte> band_scales_;  // of the band at hand, row-major, as written
  std::vector<float> tile_scales_;      // effective
  std::vector<float> row_scales_;       // of all rows, where a part is made of them
  std::vector<std::int64_t> row_sums_;
  std::vector<PartWriter> parts_;  // while run() runs
  quantize::QualitySums quality_;
};

}  // namespace

TensorResult encode(const TensorTask& task, std::optional<float> amax) {
  return Encoder(task, amax).run();
}

float amax_of(const TensorTask& task) {
  return Encoder(task, std::nullopt).largest();
}

}  // namespace ingot::convert
