#include "verify/weights/element_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/plain_cast.h"
#include "verify/weights/element_row.h"

namespace ingot::verify {

using formats::CodeKind;
using formats::SchemeId;

namespace {

/// One element's counts and largest errors, under a RowPiece's `inverse` and `limit`.
void look_at(float source, float output, float inverse, float limit, const StepGrid& grid,
             RowSums& sums) {
  const float distance = std::fabs(output - source);
  const float magnitude = std::fabs(source);
  const float stored = std::fabs(output);
  sums.max_error = std::max(sums.max_error, distance);
  sums.exact += distance == 0 ? 1 : 0;
  sums.zeroed += output == 0 && distance != 0 ? 1 : 0;
  if (magnitude >= kLeastRelative)
    sums.max_relative = std::max(sums.max_relative, distance / magnitude);
  const float code = std::min(magnitude, stored) * inverse;
  const float power =
      std::max(std::bit_cast<float>(std::bit_cast<std::uint32_t>(code) & 0x7F800000U), grid.floor);
  if (!(distance > (grid.is_even() ? limit : power * limit))) return;
  const bool is_beyond = stored * inverse >= grid.largest * (1 - 0x1p-12F) && magnitude > stored &&
                         std::signbit(source) == std::signbit(output);
  ++(is_beyond ? sums.saturated : sums.misrounded);
}

using CompareRow = void (*)(const RowPiece&, const StepGrid&, RowSums&);

/// The part of a value that is left of it at the least where a search cuts it off. INT4's search
/// tries scales from amax / 12 on, and then the scale that best fits the codes q under the winner
/// s, (sum of w x q) / (sum of w q^2) with weights w of the columns. This is a mean of x / q, which
/// is at least s / 2, since |q| = 1 begins at half a step. So no scale is below amax / 24, and 7 of
/// 24 parts are left; a search by moments may take a scale that is lower by 8 / 128. For E2M1 it
/// takes 5 / 16 of the scale by amax or more. Other codes have narrower searches. Over all values,
/// normal numbers in groups of 32 with one column that matters have a fitted factor of 0.93, and of
/// 0.998 over the values within reach.
constexpr double kLeastKept = 0.25;

/// One row of so many is in the histogram.
constexpr std::uint64_t kHistogramRows = 64;

/// The scales of a piece of every row, looked up again where rows leave their group.
class PieceScales {
 public:
  PieceScales(const ElementRun& run, std::size_t first, std::size_t n)
      : first_(first),
        n_(n),
        group_(run.stored.block_cols),
        slack_(run.grid.slack),
        step_limit_(run.grid.limit * run.grid.step_factor *
                    (run.grid.is_even() ? run.grid.floor : 1)),
        is_signed_(run.grid.has_signed_scales) {
    if (group_ == 0) {
      inverse_.fill(1);
      limit_.fill(step_limit_);
      is_ordinary_ = true;
      return;
    }
    check_scales(run.stored);
    stored_ = &run.stored;
    is_ordered_ = !run.stored.group_order.empty();
    into_group_ = (run.stored.first_col + first) % group_;
  }

  /// Looks up the scales of row `r` of the run.
  void move_to(std::size_t r) {
    if (stored_ == nullptr) return;
    row_ = r;
    if (is_ordered_) return;
    const float* scales =
        stored_->scales.data() + stored_->first_group(r) + stored_->block_of_col(first_);
    if (scales == scales_) return;
    scales_ = scales;
    is_ordinary_ = invert();
  }
  /// True if every sixteen columns share a scale that is neither tiny nor huge.
  [[nodiscard]] bool is_ordinary() const { return is_ordinary_; }
  [[nodiscard]] const float* inverse() const { return inverse_.data(); }
  [[nodiscard]] const float* limit() const { return limit_.data(); }
  /// Returns the magnitude of the scale of a column of the piece; 1 without scales.
  [[nodiscard]] float of_column(std::size_t c) const {
    if (is_ordered_) return magnitude(stored_->scale(stored_->group(row_, first_ + c)));
    return scales_ == nullptr ? 1 : magnitude(scales_[(into_group_ + c) / group_]);
  }

 private:
  /// The factor of steps; where a scale is above zero by definition, the scale.
  [[nodiscard]] float magnitude(float scale) const { return is_signed_ ? std::fabs(scale) : scale; }

  [[nodiscard]] bool invert() {
    const bool is_one = group_ - into_group_ >= n_;
    if (!is_one && (group_ % kRowStep != 0 || into_group_ % kRowStep != 0)) return false;
    const std::size_t groups = (into_group_ + n_ - 1) / group_ + 1;
    unsigned n_ordinary = 0;  // no branch, so that vectors compare
    for (std::size_t g = 0; g < groups; ++g) {
      const float scale = magnitude(scales_[g]);
      n_ordinary +=
          static_cast<unsigned>(scale >= 0x1p-100F) & static_cast<unsigned>(scale <= 0x1p100F);
    }
    if (n_ordinary != groups) return false;
    const std::size_t steps = (n_ + kRowStep - 1) / kRowStep;
    if (group_ == kRowStep) {  // a loop of its own, that vectors divide in
      for (std::size_t step = 0; step < steps; ++step) {
        inverse_[step] = slack_ / magnitude(scales_[step]);
        limit_[step] = step_limit_ * magnitude(scales_[step]);
      }
      return true;
    }
    std::size_t step = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t end =
          is_one ? steps : std::min(steps, ((g + 1) * group_ - into_group_) / kRowStep);
      const float scale = magnitude(scales_[g]);
      std::fill(inverse_.data() + step, inverse_.data() + end, slack_ / scale);
      std::fill(limit_.data() + step, limit_.data() + end, step_limit_ * scale);
      step = end;
    }
    return true;
  }

  const quantize::CodedMatrix* stored_ = nullptr;  // null for a tensor without scales
  std::size_t first_, n_, group_;
  std::size_t into_group_ = 0, row_ = 0;
  bool is_ordered_ = false;  // columns have an order of groups
  float slack_, step_limit_;
  bool is_signed_;
  const float* scales_ = nullptr;
  bool is_ordinary_ = false;
  std::array<float, kRowPiece / kRowStep> inverse_, limit_;
};

/// The values of one element.
struct Element {
  double source, output, scale;
  [[nodiscard]] double distance() const { return std::fabs(output - source); }
};

/// Distance to the neighbour on the source's side; 0 under a scale that is none.
double step_at(const Element& element, const StepGrid& grid) {
  if (!std::isfinite(element.scale) || element.scale <= 0) return 0;
  const double code = std::min(std::fabs(element.source), std::fabs(element.output)) /
                      element.scale * static_cast<double>(grid.slack);
  // The power of two below: `code` is finite, and the floor is normal.
  const double power = std::bit_cast<double>(
      std::bit_cast<std::uint64_t>(std::max(code, static_cast<double>(grid.floor))) &
      0x7FF0'0000'0000'0000U);
  return static_cast<double>(grid.step_factor) * element.scale * power;
}

bool is_far(const Element& element, const StepGrid& grid, double step) {
  double limit = static_cast<double>(grid.limit) * step;
  if (limit > 0 && element.scale < 0x1p-100) limit += 0x1p-149;
  return element.distance() > limit;
}

/// True if a value that is far from its source is the largest code's, or the largest that is a
/// finite number under its scale, and the source lies beyond.
bool is_beyond(const Element& element, const StepGrid& grid, double step) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const double top = static_cast<double>(grid.largest * (1 - 0x1p-12F)) * element.scale;
  const bool is_last = std::fabs(element.output) >= top || std::fabs(element.output) + step > kMost;
  return step > 0 && is_last && std::fabs(element.source) > std::fabs(element.output) &&
         std::signbit(element.source) == std::signbit(element.output);
}

/// True if the groups of a run have their own ends of the codes.
bool has_ends(const quantize::CodedMatrix& run) {
  return !run.zeros.empty() && formats::scheme_facts(run.scheme).code == CodeKind::kInt4;
}

/// is_beyond() of an element of a run that has_ends(): the code is the first or the last, or the
/// last that is a finite number.
bool is_beyond_end(const quantize::CodedMatrix& run, std::size_t r, std::size_t c,
                   const Element& element, double step) {
  constexpr StepGrid kEndless{.largest = std::numeric_limits<float>::infinity()};
  const std::uint8_t code = quantize::code_at<4>(run.row(r), c);
  if (code != 0 && code != 15) return is_beyond(element, kEndless, step);
  const std::size_t group = run.group(r, c);
  const double steps = element.source / static_cast<double>(run.scale(group));
  const auto end = static_cast<double>(quantize::Int4::value(code, run.zero(group)));
  return code == 0 ? steps < end : steps > end;
}

void judge(const Element& element, const StepGrid& grid, double step, ElementSums& sums) {
  if (!is_far(element, grid, step)) return;
  ++(is_beyond(element, grid, step) ? sums.saturated : sums.misrounded);
}

void add_finite(const Element& element, const StepGrid& grid, bool is_in_histogram,
                ElementSums& sums) {
  const double error = element.output - element.source;
  const double distance = std::fabs(error);
  sums.error += error;
  sums.error2 += error * error;
  sums.source2 += element.source * element.source;
  sums.output2 += element.output * element.output;
  sums.product += element.source * element.output;
  sums.exact += error == 0 ? 1 : 0;
  sums.zeroed += element.output == 0 && element.source != 0 ? 1 : 0;
  sums.max_error = std::max(sums.max_error, distance);
  // FP32, as where there is no need to be careful.
  if (std::fabs(element.source) >= static_cast<double>(kLeastRelative)) {
    const auto relative =
        static_cast<float>(distance) / static_cast<float>(std::fabs(element.source));
    sums.max_relative = std::max(sums.max_relative, static_cast<double>(relative));
  }
  const double step = step_at(element, grid);
  judge(element, grid, step, sums);
  if (!is_in_histogram) return;
  const double bin = distance == 0 ? 0
                     : step == 0   ? kStepBins
                                   : distance / step * 16 * static_cast<double>(kBinFactor);
  ++sums.step_histogram[bin < kStepBins - 1 ? static_cast<std::size_t>(bin) : kStepBins - 1];
}

/// Adds a piece of any numbers under any scales, in double, from column to column. Where the scale
/// is below 2^-100, values may be off by 2^-149 more, the smallest step that FP32 has.
void compare_extreme_scales(const RowPiece& piece, const PieceScales& scales, const StepGrid& grid,
                            bool is_in_histogram, ElementSums& sums) {
  for (std::size_t c = 0; c < piece.n; ++c) {
    if (!std::isfinite(piece.source[c])) {
      ++sums.source_nonfinite;
    } else if (!std::isfinite(piece.output[c])) {
      ++sums.nonfinite;
    } else {
      add_finite({.source = static_cast<double>(piece.source[c]),
                  .output = static_cast<double>(piece.output[c]),
                  .scale = static_cast<double>(scales.of_column(c))},
                 grid, is_in_histogram, sums);
    }
  }
}

/// Errors in steps, counted in sixteenths. In FP32, and a slack too large: 2^-12 of a step.
void count_steps(const RowPiece& piece, const StepGrid& grid, ElementSums& sums) {
  if (piece.source == piece.output) {
    sums.step_histogram[0] += piece.n;
    return;
  }
  std::array<std::uint32_t, kRowPiece> bins;
  const float factor = 16 / grid.step_factor * kBinFactor;
  for (std::size_t begin = 0; begin < piece.n; begin += kRowStep) {
    const float inverse = piece.inverse[begin / kRowStep];
    for (std::size_t c = begin; c < std::min(begin + kRowStep, piece.n); ++c) {
      const float code = std::min(std::fabs(piece.source[c]), std::fabs(piece.output[c])) * inverse;
      const float power = std::max(
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(code) & 0x7F800000U), grid.floor);
      // 1 / power, of its bits.
      const auto reciprocal =
          std::bit_cast<float>((254U << 23) - std::bit_cast<std::uint32_t>(power));
      const float steps =
          std::fabs(piece.output[c] - piece.source[c]) * inverse * reciprocal * factor;
      constexpr auto kLast = static_cast<float>(kStepBins - 1);
      bins[c] = static_cast<std::uint32_t>(static_cast<std::int32_t>(std::min(kLast, steps)));
    }
  }
  for (std::size_t c = 0; c < piece.n; ++c) ++sums.step_histogram[bins[c]];
}

/// True if FP32 was enough for these sums. False for NaN.
bool hold(const RowSums& row) {
  return row.source2 >= 0x1p-60 && row.source2 <= 0x1p120 && row.error2 <= row.source2 / 4;
}

void take(const RowSums& row, ElementSums& sums) {
  sums.exact += row.exact;
  sums.misrounded += row.misrounded;
  sums.saturated += row.saturated;
  sums.zeroed += row.zeroed;
  sums.error += row.error;
  sums.error2 += row.error2;
  sums.source2 += row.source2;
  sums.output2 += row.source2 + 2 * row.cross + row.error2;
  sums.product += row.source2 + row.cross;
  sums.max_error = std::max(sums.max_error, static_cast<double>(row.max_error));
  sums.max_relative = std::max(sums.max_relative, static_cast<double>(row.max_relative));
}

/// True if row `r` of a run is in the histogram.
bool is_counted(const quantize::CodedMatrix& run, std::size_t r) {
  return (run.first_row + r) % kHistogramRows == 0;
}

class RunComparison {
 public:
  RunComparison(const ElementRun& run, CompareRow compare_row, ElementSums& sums)
      : run_(run), compare_row_(compare_row), sums_(sums) {}

  void compare() {
    const std::size_t rows = run_.source.rows;
    const std::size_t cols = run_.source.cols;
    if (rows == 0 || cols == 0) return;
    sums_.elements += std::uint64_t{rows} * cols;
    if (cols <= kRowPiece) {
      PieceScales scales(run_, 0, cols);
      for (std::size_t r = 0; r < rows; ++r) add(r, 0, cols, scales);
      return;
    }
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; c += kRowPiece) {
        const std::size_t n = std::min(kRowPiece, cols - c);
        PieceScales scales(run_, c, n);
        add(r, c, n, scales);
      }
    }
  }

 private:
  void add(std::size_t r, std::size_t first, std::size_t n, PieceScales& scales) {
    scales.move_to(r);
    const bool is_in_histogram = is_counted(run_.stored, r);
    const RowPiece piece{.source = run_.source.row(r) + first,
                         .output = run_.output.row(r) + first,
                         .n = n,
                         .inverse = scales.inverse(),
                         .limit = scales.limit()};
    RowSums row{.max_relative = static_cast<float>(sums_.max_relative)};
    const std::uint64_t misrounded = sums_.misrounded, saturated = sums_.saturated;
    if (scales.is_ordinary()) compare_row_(piece, run_.grid, row);
    if (!scales.is_ordinary() || !hold(row)) {
      compare_extreme_scales(piece, scales, run_.grid, is_in_histogram, sums_);
    } else {
      take(row, sums_);
      if (is_in_histogram) count_steps(piece, run_.grid, sums_);
    }
    if (!has_ends(run_.stored) || (sums_.misrounded == misrounded && sums_.saturated == saturated))
      return;
    const std::uint64_t n_beyond = count_beyond_ends(r, first, piece, scales);
    sums_.misrounded += sums_.saturated - saturated - n_beyond;
    sums_.saturated = saturated + n_beyond;
  }

  // Counts the values of a piece that are far from their sources and beyond the ends of the codes.
  [[nodiscard]] std::uint64_t count_beyond_ends(std::size_t r, std::size_t first,
                                                const RowPiece& piece,
                                                const PieceScales& scales) const {
    std::uint64_t n = 0;
    for (std::size_t c = 0; c < piece.n; ++c) {
      const float scale = scales.of_column(c);
      if (std::fabs(piece.source[c] - piece.output[c]) <= scale / 2) continue;
      const Element element{.source = static_cast<double>(piece.source[c]),
                            .output = static_cast<double>(piece.output[c]),
                            .scale = static_cast<double>(scale)};
      if (!std::isfinite(element.source) || !std::isfinite(element.output)) continue;
      const double step = step_at(element, run_.grid);
      const bool ends_there = is_beyond_end(run_.stored, r, first + c, element, step);
      n += ends_there && is_far(element, run_.grid, step) ? 1U : 0U;
    }
    return n;
  }

  const ElementRun& run_;
  CompareRow compare_row_;
  ElementSums& sums_;
};

void compare(const ElementRun& run, CompareRow compare_row, ElementSums& sums) {
  INGOT_CHECK(run.source.rows == run.output.rows && run.source.cols == run.output.cols);
  RunComparison(run, compare_row, sums).compare();
}

constexpr float kLimit = 0.5001F;
constexpr float kStepSlack = 1 + 0x1p-12F;

constexpr StepGrid kBf16{0x1p-126F, 0x1p-7F, kLimit, 0x1.FEp127F, 1};
constexpr StepGrid kF16{0x1p-14F, 0x1p-10F, kLimit, 65504, 1};
constexpr StepGrid kF32{0x1p-126F, 0x1p-23F, 0, std::numeric_limits<float>::infinity(), 1};

}  // namespace

void compare_elements(const ElementRun& run, ElementSums& sums) {
  compare(run, compare_row, sums);
}

void sum_cut_off(const ElementRun& run, ElementSums& sums) {
  for (std::size_t c = 0; c < run.source.cols; c += kRowPiece) {
    const std::size_t n = std::min(kRowPiece, run.source.cols - c);
    PieceScales scales(run, c, n);
    for (std::size_t r = 0; r < run.source.rows; ++r) {
      scales.move_to(r);
      for (std::size_t i = 0; i < n; ++i) {
        const Element element{.source = static_cast<double>(run.source.row(r)[c + i]),
                              .output = static_cast<double>(run.output.row(r)[c + i]),
                              .scale = static_cast<double>(scales.of_column(i))};
        // Nothing else is cut off, and no step follows from what is not finite.
        if (!(std::fabs(element.source) > std::fabs(element.output)) ||
            !std::isfinite(element.source))
          continue;
        const double step = step_at(element, run.grid);
        const bool ends_differ = has_ends(run.stored);
        const bool is_cut_off = ends_differ ? is_beyond_end(run.stored, r, c + i, element, step)
                                            : is_beyond(element, run.grid, step);
        if (!is_cut_off || !is_far(element, run.grid, step)) continue;
        sums.cut_source2 += element.source * element.source;
        sums.cut_product += element.source * element.output;
        // A zero point of 0 leaves nothing of values below zero.
        if (!ends_differ && std::fabs(element.output) < kLeastKept * std::fabs(element.source))
          ++sums.misrounded;
      }
    }
  }
}

bool compare_words(const quantize::CodedMatrix& source, const quantize::CodedMatrix& output,
                   ElementSums& sums) {
  bool all_same = true;
  std::array<float, kRowPiece> values, others;
  for (std::size_t r = 0; r < source.rows; ++r) {
    for (std::size_t c = 0; c < source.cols; c += kRowPiece) {
      const std::size_t n = std::min(kRowPiece, source.cols - c);
      const std::size_t at = (r * source.cols + c) * sizeof(std::uint16_t);
      RowSums row{.exact = n};
      const bool is_same = sum_same_words(source.codes + at, output.codes + at, n, row.source2);
      all_same = all_same && is_same;
      if (is_same && hold(row)) {
        sums.elements += n;
        take(row, sums);
        if (is_counted(output, r)) sums.step_histogram[0] += n;
        continue;
      }
      const auto decoded = [n](const std::byte* words, std::array<float, kRowPiece>& floats) {
        quantize::cast_words(quantize::WordCast::kBf16ToF32, words, n,
                             reinterpret_cast<std::byte*>(floats.data()));
        return formats::MatrixView<const float>{
            .data = floats.data(), .rows = 1, .cols = n, .stride = n};
      };
      compare_elements({.source = decoded(source.codes + at, values),
                        .output = decoded(output.codes + at, others),
                        .stored = {.rows = 1, .cols = n, .first_row = output.first_row + r},
                        .grid = kBf16},
                       sums);
    }
  }
  return all_same;
}

bool scalar::sum_same_words(const std::byte* source, const std::byte* output, std::size_t n,
                            double& source2) {
  std::array<double, kRowStep> lanes{};
  for (std::size_t begin = 0; begin < n; begin += kRowUnit) {
    std::array<float, kRowStep> unit{};
    for (std::size_t c = begin; c < std::min(begin + kRowUnit, n); ++c) {
      std::uint16_t word;
      std::memcpy(&word, source + c * sizeof word, sizeof word);
      const float value = formats::float_from_bf16(word);
      unit[c % kRowStep] += value * value;
    }
    for (std::size_t lane = 0; lane < kRowStep; ++lane)
      lanes[lane] += static_cast<double>(unit[lane]);
  }
  source2 = fold_lanes(lanes.data());
  return std::memcmp(source, output, n * sizeof(std::uint16_t)) == 0;
}

void scalar::compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums) {
  using Lanes = std::array<double, kRowStep>;
  using Halves = std::array<float, kRowStep>;
  Lanes error{}, error2{}, source2{}, cross{};
  for (std::size_t begin = 0; begin < piece.n; begin += kRowUnit) {
    Halves unit_error{}, unit_error2{}, unit_source2{}, unit_cross{};
    for (std::size_t c = begin; c < std::min(begin + kRowUnit, piece.n); ++c) {
      const float source = piece.source[c];
      const float difference = piece.output[c] - source;
      const std::size_t lane = c % kRowStep;
      unit_error[lane] += difference;
      unit_error2[lane] += difference * difference;
      unit_source2[lane] += source * source;
      unit_cross[lane] += source * difference;
      look_at(source, piece.output[c], piece.inverse[c / kRowStep], piece.limit[c / kRowStep], grid,
              sums);
    }
    for (std::size_t lane = 0; lane < kRowStep; ++lane) {
      error[lane] += static_cast<double>(unit_error[lane]);
      error2[lane] += static_cast<double>(unit_error2[lane]);
      source2[lane] += static_cast<double>(unit_source2[lane]);
      cross[lane] += static_cast<double>(unit_cross[lane]);
    }
  }
  sums.error += fold_lanes(error.data());
  sums.error2 += fold_lanes(error2.data());
  sums.source2 += fold_lanes(source2.data());
  sums.cross += fold_lanes(cross.data());
}

void scalar::compare_elements(const ElementRun& run, ElementSums& sums) {
  compare(run, scalar::compare_row, sums);
}

StepGrid step_grid(SchemeId scheme) {
  const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
  if (facts.code != CodeKind::kPlain) {
    // -128 is as far as 127 for INT8 values that were cut off.
    const quantize::CodeFacts code = quantize::code_facts(facts.code);
    return {code.floor,   code.step_factor, kLimit,
            code.largest, kStepSlack,       facts.has_signed_scales};
  }
  INGOT_CHECK(scheme != SchemeId::kRaw);
  if (scheme == SchemeId::kBf16) return kBf16;
  return scheme == SchemeId::kF16 ? kF16 : kF32;
}

}  // namespace ingot::verify
