#include "verify/weights/weight_pair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "formats/modules/joined_module.h"
#include "formats/storage/encoding.h"
#include "quantize/error_feedback.h"
#include "quantize/rows.h"
#include "verify/weights/element_run.h"

namespace ingot::verify {
namespace {

using formats::DType;
using formats::LogicalTensor;
using formats::SchemeId;

/// Values decoded at a time on either side: both fit the nearest cache.
constexpr std::uint64_t kTileElements = 2048;
/// Codes read at a time on either side, whole rows: both stay in the cache of a processor's own.
constexpr std::uint64_t kChunkElements = std::uint64_t{1} << 16;

DType dtype_of(const ComparedTensor& side) {
  return side.source.stored()[side.tensor.encoding.stored.weight()].dtype;
}

std::array<std::uint64_t, 2> group_of(const ComparedTensor& side) {
  return {side.tensor.encoding.block_rows, side.tensor.encoding.block_cols};
}

bool is_linear(const LogicalTensor& tensor) {
  if (tensor.shape.size() < 2) return false;
  return tensor.rule == nullptr || tensor.rule->fp8_by_default ||
         tensor.rule->role != formats::Role::kRouter;
}

bool takes_scales(SchemeId scheme) {
  const quantize::Scheme* row = quantize::find_scheme(scheme);
  return row != nullptr && row->takes_scales;
}

bool are_powers_of_two(std::span<const float> scales) {
  return std::ranges::all_of(
      scales, [](float scale) { return scale == 0 || formats::is_e8m0_value(scale); });
}

/// Positive floats at most so many apart in the order of their bits.
bool within_ulps(float a, float b, std::uint32_t ulps) {
  const auto x = std::bit_cast<std::uint32_t>(a);
  const auto y = std::bit_cast<std::uint32_t>(b);
  return (x > y ? x - y : y - x) <= ulps;
}

// Compares as compare_elements() does, but holds codes against the values that they were to be made
// of: the source's in BF16, which the run then has as its source.
void compare_cast_first(ElementRun& run, formats::MatrixView<float> meant, ElementSums& found) {
  ElementSums sums, of_codes;
  compare_elements(run, sums);
  for (std::size_t row = 0; row < meant.rows; ++row)
    std::copy_n(run.source.row(row), meant.cols, meant.row(row));
  quantize::round_to_bf16(meant);
  run.source = meant;
  compare_elements(run, of_codes);
  sums.misrounded = of_codes.misrounded;
  sums.saturated = of_codes.saturated;
  sums.step_histogram = of_codes.step_histogram;
  found.add(sums);
}

/// Squares of scales by which the mean squared error of a row may be off at the most where errors
/// are carried on: two steps in the middle of the grid. Of the experts of tiny-v32 the row that is
/// farthest off has 0.4 in NVFP4, 2.3 in MXFP4 and 2.5 in INT4 of 128; rows whose columns are in
/// another order have 11, 9 and 18 at the median, and 99% of them 7.2, 4.6 and 8.3 or more.
constexpr double kMostCarried = 4;

// Compares as compare_elements() does, row by row, and forgets misrounded values of rows whose
// error is such that rounding and carrying on explain it.
void compare_carried(const ElementRun& run, ElementSums& found) {
  for (std::size_t row = 0; row < run.source.rows; ++row) {
    const auto one =
        [row](formats::MatrixView<const float> of) -> formats::MatrixView<const float> {
      return {.data = of.row(row), .rows = 1, .cols = of.cols, .stride = of.stride};
    };
    const quantize::CodedMatrix stored = run.stored.row_range(row, 1);
    ElementSums sums;
    compare_elements(
        {.source = one(run.source), .output = one(run.output), .stored = stored, .grid = run.grid},
        sums);
    double squares = 0;
    for (std::size_t c = 0; c < stored.cols;) {
      const std::size_t end = stored.group_end(c);
      const auto scale = static_cast<double>(stored.scale(stored.group(0, c)));
      squares += static_cast<double>(end - c) * scale * scale;
      c = end;
    }
    if (sums.error2 <= kMostCarried * squares) sums.misrounded = 0;
    found.add(sums);
  }
}

}  // namespace

void BandSums::add(const BandSums& next) {
  sums.add(next.sums);
  reach.add(next.reach);
  is_same = is_same && next.is_same;
  is_rescaled = is_rescaled && next.is_rescaled;
  has_powers_of_two = has_powers_of_two && next.has_powers_of_two;
}

WeightPair::WeightPair(const ComparedTensor& source, const ComparedTensor& output, double sample,
                       const Wanted& wanted)
    : source_(source),
      output_(output),
      wanted_(wanted),
      is_raw_(source.tensor.encoding.scheme == SchemeId::kRaw ||
              output.tensor.encoding.scheme == SchemeId::kRaw),
      same_coding_(source.tensor.encoding.scheme == output.tensor.encoding.scheme &&
                   group_of(source) == group_of(output) &&
                   (!is_raw_ || dtype_of(source) == dtype_of(output))),
      is_carrying_(wanted.carries_errors(output.tensor)),
      // A group may get smaller while its columns have their turn, after its scale was chosen.
      is_reach_judged_(!is_carrying_ &&
                       (!wanted.has_given_scales || !takes_scales(output.tensor.encoding.scheme))),
      bands_(source.tensor.shape, group_of(source), group_of(output), sample),
      codes_(output.tensor.encoding, output.tensor.shape, sample < 1) {}

std::uint64_t WeightPair::bytes_of(std::uint64_t elements) const {
  return elements * (code_bits(source_) + code_bits(output_)) / 8;
}

std::uint64_t WeightPair::scratch_bytes() const {
  const std::uint64_t elements = bands_.band_elements();
  std::uint64_t bytes = bytes_of(elements);
  for (const ComparedTensor* side : {&source_, &output_}) {
    // Scales as they are stored and as they are used; more than there are where rows share them.
    const std::uint64_t group = side->tensor.encoding.block_cols;
    if (group != 0) bytes += (elements / group + bands_.cols() / group + 2) * 2 * sizeof(float);
  }
  return bytes + 3 * std::max(kTileElements, bands_.tile_cols()) * sizeof(float);
}

// The two are opened together, when the first band is read.
const formats::ScaleReader& WeightPair::reader(bool of_output) const {
  std::call_once(opened_, [&] {
    const formats::ScalePolicy policy{.allow_zero = true};
    source_scales_.emplace(source_.source, source_.tensor, policy);
    output_scales_.emplace(output_.source, output_.tensor, policy);
  });
  return of_output ? *output_scales_ : *source_scales_;
}

EncodedBand WeightPair::scales_of(bool of_output, const WeightBand& band) const {
  const ComparedTensor& side = of_output ? output_ : source_;
  const bool has_scales = !is_raw_ && side.tensor.encoding.block_cols != 0;
  return read_scales(side, band, has_scales ? &reader(of_output) : nullptr);
}

BandSums WeightPair::compare(const WeightBand& band, WeightScratch& scratch) const {
  BandSums found;
  found.is_rescaled = !is_raw_;
  if (is_raw_ && !same_coding_) {
    found.is_same = false;
    found.sums.elements = band.rows * band.cols;
    return found;
  }
  const EncodedBand source = scales_of(false, band), output = scales_of(true, band);
  const bool has_same_scales = same_coding_ && scales_agree(source, output, band);
  bool has_same_codes = same_coding_;
  const std::uint64_t rows = std::max<std::uint64_t>(kChunkElements / band.cols, 1);
  for (std::uint64_t row = 0; row < band.rows; row += rows) {
    const std::uint64_t n = std::min(rows, band.rows - row);
    const Chunk chunk{.source = read_codes(source_, source, row, n, scratch.source_codes),
                      .output = read_codes(output_, output, row, n, scratch.output_codes)};
    bool is_same = false;
    if (same_coding_ && output_.tensor.encoding.scheme == SchemeId::kBf16) {
      is_same = compare_words(chunk.source, chunk.output, found.sums);
    } else {
      is_same = same_coding_ && std::memcmp(chunk.source.codes, chunk.output.codes,
                                            n * band.cols * code_bits(source_) / 8) == 0;
      if (is_raw_) {
        compare_raw(chunk, is_same, found.sums);
      } else {
        compare_values(chunk, is_same && has_same_scales, found, scratch);
      }
    }
    has_same_codes = has_same_codes && is_same;
  }
  found.is_same = has_same_codes && has_same_scales;
  if (is_raw_) return found;
  found.is_rescaled = has_same_codes && is_rescaled(source, output);
  found.has_powers_of_two = are_powers_of_two(output.scales);
  return found;
}

// Numbers without a use in computation: the same or not, element by element.
void WeightPair::compare_raw(const Chunk& chunk, bool is_same, ElementSums& sums) const {
  const std::uint64_t elements = chunk.source.rows * chunk.source.cols;
  sums.elements += elements;
  if (is_same) {
    sums.exact += elements;
    return;
  }
  const std::uint64_t width = std::max<std::uint64_t>(code_bits(source_) / 8, 1);
  for (std::uint64_t at = 0; at < elements * code_bits(source_) / 8; at += width) {
    sums.exact += std::memcmp(chunk.source.codes + at, chunk.output.codes + at, width) == 0 ? 1 : 0;
  }
}

// The zero points of INT4 codes, which scale is whose, and factors of columns.
bool WeightPair::zeros_agree(const EncodedBand& source, const EncodedBand& output) {
  for (std::size_t i = 0; i < source.scales.size() && i < output.scales.size(); ++i) {
    if (source.run.zero(i) != output.run.zero(i)) return false;
  }
  return std::ranges::equal(source.run.group_order, output.run.group_order) &&
         std::ranges::equal(source.run.column_factors, output.run.column_factors);
}

// True if the effective factors of the codes agree, whether stored as F32 or BF16, as factor or
// divisor.
bool WeightPair::scales_agree(const EncodedBand& source, const EncodedBand& output,
                              const WeightBand& band) const {
  const std::uint32_t ulps =
      source_.tensor.encoding.global_divides != output_.tensor.encoding.global_divides ? 2 : 0;
  const std::uint64_t group = source.run.block_cols;
  if (group == 0) return true;
  if (!zeros_agree(source, output)) return false;
  const std::uint64_t first = band.col / group;
  const std::uint64_t last = (band.col + band.cols - 1) / group;
  const std::uint64_t down = source.scales.size() / source.run.scale_cols;
  for (std::uint64_t row = 0; row < down; ++row) {
    for (std::uint64_t i = first; i <= last; ++i) {
      const std::uint64_t at = row * source.run.scale_cols + i;
      if (!within_ulps(source.scales[at], output.scales[at], ulps)) return false;
    }
  }
  return true;
}

// The rule by which weights that loaders fuse come under one global scale, the largest of them:
// docs/formats.md, "One global scale for fused weights".
bool WeightPair::is_rescaled(const EncodedBand& source, const EncodedBand& output) const {
  const auto& own = reader(false).global();
  const auto& joint = reader(true).global();
  if (!own || !joint || own->divides != joint->divides || own->value == joint->value ||
      source.scales.size() != output.scales.size())
    return false;
  const float ratio = own->divides ? joint->value / own->value : own->value / joint->value;
  if (!(ratio < 1)) return false;
  const auto stored = [](float effective, const formats::GlobalScale& global) {
    return formats::e4m3_from_float(global.divides ? effective * global.value
                                                   : effective / global.value);
  };
  for (std::size_t i = 0; i < source.scales.size(); ++i) {
    const std::uint8_t before = stored(source.scales[i], *own);
    const std::uint8_t nearest = formats::e4m3_from_float(formats::float_from_e4m3(before) * ratio);
    const std::uint8_t wanted = before == 0 ? nearest : std::max<std::uint8_t>(nearest, 1);
    if (stored(output.scales[i], *joint) != wanted) return false;
  }
  return true;
}

void WeightPair::compare_values(const Chunk& chunk, bool is_same, BandSums& found,
                                WeightScratch& scratch) const {
  const quantize::CodedMatrix &source = chunk.source, &output = chunk.output;
  const StepGrid& grid = step_grid(output.scheme);
  const std::uint64_t cols = std::min<std::uint64_t>(bands_.tile_cols(), source.cols);
  const std::uint64_t rows = std::max<std::uint64_t>(kTileElements / cols, 1);
  if (scratch.source_values.size() < rows * cols) {
    scratch.source_values.resize(rows * cols);
    scratch.output_values.resize(rows * cols);
  }
  // Kept codes were not made under the options of this conversion.
  const bool is_cast_first = wanted_.via_bf16 && !is_same;
  if (is_cast_first) scratch.meant_values.resize(scratch.source_values.size());
  const bool is_reach_judged = !is_same && is_reach_judged_ && !output.scales.empty();
  for (std::uint64_t row = 0; row < source.rows; row += rows) {
    const std::uint64_t n_rows = std::min(rows, source.rows - row);
    for (std::uint64_t col = 0; col < source.cols; col += cols) {
      const std::uint64_t n_cols = std::min(cols, source.cols - col);
      const auto view = [&](std::vector<float>& values) -> formats::MatrixView<float> {
        return {.data = values.data(), .rows = n_rows, .cols = n_cols, .stride = n_cols};
      };
      const auto values = view(scratch.source_values);
      const auto decoded = is_same ? values : view(scratch.output_values);
      quantize::decode(source.part(row, n_rows, col, n_cols), values);
      const quantize::CodedMatrix stored = output.part(row, n_rows, col, n_cols);
      if (!is_same) quantize::decode(stored, decoded);
      ElementRun run{.source = values, .output = decoded, .stored = stored, .grid = grid};
      const std::uint64_t saturated = found.sums.saturated;
      if (is_carrying_ && !is_same) {
        compare_carried(run, found.sums);
      } else if (is_cast_first) {
        compare_cast_first(run, view(scratch.meant_values), found.sums);
      } else {
        compare_elements(run, found.sums);
      }
      // A search by importance cuts off as much as the columns that matter less cost it.
      const bool is_weighted =
          wanted_.search == kWeightedSearch || wanted_.search == kCarryingSearch;
      if (is_weighted && found.sums.saturated > saturated) {
        const std::uint64_t misrounded = found.sums.misrounded;
        sum_cut_off(run, found.sums);
        if (is_carrying_) found.sums.misrounded = misrounded;
      }
      if (is_reach_judged) codes_.see(run, output_scales_->global(), found.reach);
    }
  }
}

std::optional<float> WeightPair::one_scale() const {
  if (output_.tensor.encoding.block_cols == 0) return std::nullopt;
  const formats::ScaleReader& scales = reader(true);
  if (scales.global()) return scales.global()->value;
  if (scales.rows() != 1 || scales.cols() != 1) return std::nullopt;
  return scales.read({.first = 0, .n = 1}).front();
}

bool WeightPair::has_powers_of_two() const {
  if (output_.tensor.encoding.block_cols == 0) return false;
  const formats::ScaleReader& scales = reader(true);
  constexpr std::uint64_t kScalesAtOnce = std::uint64_t{1} << 16;
  const std::uint64_t step = scales.rows_within(kScalesAtOnce);
  for (std::uint64_t row = 0; row < scales.rows(); row += step) {
    const std::vector<float> read =
        scales.read({.first = row, .n = std::min(step, scales.rows() - row)});
    if (!are_powers_of_two(read)) return false;
  }
  return true;
}

bool WeightPair::keeps_largest(double within) const {
  std::array<float, 2> largest = {0, 0};  // of source and output
  std::vector<std::byte> codes;
  for (const bool of_output : {false, true}) {
    const ComparedTensor& side = of_output ? output_ : source_;
    const bool has_scales = side.tensor.encoding.block_cols != 0;
    for (std::uint64_t i = 0; i < bands_.count(); ++i) {
      const EncodedBand band =
          read_band(side, bands_.band(i), has_scales ? &reader(of_output) : nullptr, codes);
      largest[of_output ? 1 : 0] =
          std::max(largest[of_output ? 1 : 0], quantize::encoded_amax(band.run));
    }
  }
  const auto source = static_cast<double>(largest[0]), output = static_cast<double>(largest[1]);
  return std::fabs(output - source) <= within * source;
}

std::string WeightPair::cause(std::span<const OtherScale> others) const {
  if (bands_.cols() == 0) return {};
  // A second pair, because the first has counted its groups.
  const WeightPair probe(source_, output_, 1, wanted_);
  WeightScratch scratch;
  for (std::uint64_t i = 0; i < probe.bands().count(); ++i) {
    const WeightBand band = probe.bands().band(i);
    if (probe.compare(band, scratch).sums.misrounded > 0)
      return misrounding_cause(source_, output_, band, others);
  }
  return {};
}

std::string WeightPair::fused_module() const {
  return formats::joined_module(source_.tensor.name, source_.tensor.rule,
                                formats::ExpertJoin::kExpert);
}

// True if the scales of an output in the source's scheme are those that the user asked for.
bool WeightPair::is_as_wanted(const BandSums& whole) const {
  if (!takes_scales(output_.tensor.encoding.scheme)) return false;
  if (wanted_.has_given_scales) return true;
  const bool is_fp8 = output_.tensor.encoding.scheme == SchemeId::kFp8Block;
  return is_fp8 &&
         (wanted_.fp8_grid == "ue8m0" ? whole.has_powers_of_two : wanted_.fp8_grid == "amax");
}

Relation WeightPair::relation(const BandSums& whole) const {
  if (same_coding_ && whole.is_same) return Relation::kIdentical;
  if (same_coding_ && !is_raw_ && (whole.is_rescaled || is_as_wanted(whole)))
    return Relation::kQuantized;
  if (same_coding_) return Relation::kChanged;
  if (is_raw_) return Relation::kChanged;
  if (is_quantized(output_.tensor)) return Relation::kQuantized;
  if (is_coded(source_.tensor.encoding.scheme) || is_linear(source_.tensor))
    return Relation::kWidened;
  const ElementSums& sums = whole.sums;
  const bool is_exact = sums.exact + sums.source_nonfinite == sums.elements;
  const bool is_wanted = wanted_.narrows(source_.tensor, output_.tensor.encoding.scheme);
  return is_exact || is_wanted ? Relation::kWidened : Relation::kNarrowed;
}

}  // namespace ingot::verify
