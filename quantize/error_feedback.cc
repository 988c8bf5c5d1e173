// GPTQ: each column is rounded knowing what the columns before it lost.
//
// The usual form carries (value - code) / U_jj along the rows of U, the Cholesky factor of the
// inverse of the moments. The same codes follow from the moments' own factor, if the error of a
// column is taken from the weight as it was: no inverse is needed, half of the work, and the factor
// of a column never seen is zero by itself (Chee et al., "QuIP", 2023, theorem 6). Sums are in the
// order of columns, each rounded, so that it does not matter which of them a block takes together.
//
// Columns lie in reverse order, since M = (F + 1) D (F + 1)' with F upper is Cholesky's
// factorization of M with its rows and columns reversed; and rows lie in the lanes of vectors, so
// that no sum goes across lanes.

#include "quantize/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/storage/block_scales.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/feedback_steps.h"

namespace ingot::quantize {
namespace {

constexpr std::size_t kSide = kFactorBlock;
constexpr std::size_t kBlockValues = kSide * kSide;
constexpr double kDamping = 0.01;

std::size_t blocks_of(std::uint64_t size) {
  return static_cast<std::size_t>(ceil_div(size, std::uint64_t{kSide}));
}
std::size_t place_of(std::size_t row, std::size_t col) {
  return (row * (row + 1) / 2 + col) * kBlockValues;
}
std::size_t triangle_values(std::uint64_t size) {
  return place_of(blocks_of(size), 0);
}

/// The lower triangle of the moments in reverse order, by blocks, which becomes Cholesky's factor.
class Triangle {
 public:
  Triangle(std::size_t size, const MomentsFactor::ReadRow& read, std::vector<float>& mean_squares)
      : n_(blocks_of(size)), values_(triangle_values(size)), diagonal_(n_ * kSide, 1.0) {
    std::vector<float> row(size);
    const std::size_t last = n_ * kSide - 1;
    for (std::size_t i = 0; i < size; ++i) {
      read(i, row);
      diagonal_[last - i] = mean_squares[i] = row[i];
      for (std::size_t k = i; k < size; ++k) at(last - i, last - k) = row[k];
    }
    damp(size);
  }

  /// Factors in place; false where a pivot is not above zero and finite.
  bool factor(std::size_t threads) {
    std::vector<double> turned(n_ * kBlockValues);
    for (std::size_t j = 0; j < n_; ++j) {
      if (!factor_pivots(j)) return false;
      const double* pivots = block(j, j);
      parallel_for(n_ - j - 1, threads, [&](std::size_t n) {
        double* x = turned.data() + (j + 1 + n) * kBlockValues;
        transpose(block(j + 1 + n, j), x);
        solve_block(pivots, x);
        transpose(x, block(j + 1 + n, j));
      });
      // The longest rows first, so that no thread ends late.
      parallel_for(n_ - j - 1, threads, [&](std::size_t n) {
        const std::size_t i = n_ - 1 - n;
        for (std::size_t k = j + 1; k <= i; ++k)
          subtract_product(block(i, j), turned.data() + k * kBlockValues, block(i, k));
      });
    }
    return true;
  }

  /// Writes the factor divided by its diagonal, without that diagonal.
  void write(std::vector<float>& out) const {
    for (std::size_t i = 0; i < n_ * kSide; ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const std::size_t place = place_of(i / kSide, k / kSide) + i % kSide * kSide + k % kSide;
        out[place] = static_cast<float>(values_[place] / diagonal_[k]);
      }
    }
  }

 private:
  double& at(std::size_t row, std::size_t col) {
    return values_[place_of(row / kSide, col / kSide) + row % kSide * kSide + col % kSide];
  }
  double* block(std::size_t row, std::size_t col) { return values_.data() + place_of(row, col); }

  void damp(std::size_t size) {
    const std::size_t last = n_ * kSide - 1;
    double sum = 0;
    std::size_t seen = 0;
    for (std::size_t i = 0; i < size; ++i) {
      sum += diagonal_[last - i];
      seen += diagonal_[last - i] != 0 ? 1U : 0U;
    }
    const double mean = seen == 0 ? 1.0 : sum / static_cast<double>(seen);
    for (std::size_t i = 0; i < n_ * kSide; ++i) {
      const bool is_seen = i + size > last && diagonal_[i] != 0;
      if (!is_seen) {
        for (std::size_t k = 0; k < i; ++k) at(i, k) = 0;
        for (std::size_t k = i + 1; k < n_ * kSide; ++k) at(k, i) = 0;
      }
      at(i, i) = is_seen ? diagonal_[i] + kDamping * mean : mean;
    }
  }

  bool factor_pivots(std::size_t j) {
    double* pivots = block(j, j);
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t k = 0; k <= i; ++k) {
        double value = pivots[i * kSide + k];
        for (std::size_t m = 0; m < k; ++m) value -= pivots[i * kSide + m] * pivots[k * kSide + m];
        if (k < i) {
          pivots[i * kSide + k] = value / pivots[k * kSide + k];
          continue;
        }
        if (!(value > 0) || !std::isfinite(value)) return false;
        pivots[i * kSide + i] = diagonal_[j * kSide + i] = std::sqrt(value);
      }
    }
    return true;
  }

  static void transpose(const double* from, double* to) {
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t k = 0; k < kSide; ++k) to[k * kSide + i] = from[i * kSide + k];
    }
  }

  std::size_t n_;
  std::vector<double> values_, diagonal_;
};

/// Beyond it sums of products could overflow.
constexpr float kLargestCarried = 0x1p100F;

/// Rows at work.
class Rows {
 public:
  Rows(const Scheme& scheme, const EncodeInput& in, const MomentsFactor& factor,
       const EncodeOutput& out)
      : scheme_(scheme),
        facts_(formats::scheme_facts(scheme.id)),
        in_(in),
        factor_(factor),
        out_(out),
        cols_(in.values.cols),
        group_(static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, cols_))),
        last_(factor.blocks() * kSide - 1),
        rows_(in.values.rows),
        lanes_(round_up(rows_, kCarryRows)),
        columns_((last_ + 1) * lanes_),
        errors_(kSide * lanes_),
        scales_(lanes_, 1.0F),
        zeros_(lanes_, kInt4Zero),
        effective_(rows_ * (cols_ / group_)),
        is_plain_(rows_, 0) {
    INGOT_CHECK(cols_ == factor.size() && cols_ % group_ == 0 && in.block_rows == 1);
    INGOT_CHECK(in.given_scales.empty() && can_carry_errors(scheme.id));
    if (out.zeros != nullptr) effective_zeros_.resize(effective_.size());
    INGOT_CHECK(in.importance.empty() || in.importance.size() == cols_);
    INGOT_CHECK(in.moments.empty() || in.moments.size() * kMomentBlock == cols_);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* row = in.values.row(r);
      for (std::size_t c = 0; c < cols_; ++c) column(c)[r] = row[c];
    }
  }

  void run() {
    for (std::size_t c = 0; c < cols_;) {
      const std::size_t next = std::min(cols_, c + (last_ - c) % kSide + 1);
      encode_block(c, next);
      c = next;
    }
    write_codes();
  }

 private:
  [[nodiscard]] float* column(std::size_t c) { return columns_.data() + (last_ - c) * lanes_; }
  [[nodiscard]] float* errors_of(std::size_t c) {
    return errors_.data() + (last_ - c) % kSide * lanes_;
  }

  /// Columns [begin, end), of one block of the factor.
  void encode_block(std::size_t begin, std::size_t end) {
    for (std::size_t c = begin; c < end; ++c) {
      float* errors = errors_of(c);
      std::fill_n(errors, lanes_, 0.0F);
      for (std::size_t r = 0; r < rows_; ++r) errors[r] = in_.values.row(r)[c];
    }
    const std::size_t block = (last_ - begin) / kSide;
    std::size_t waiting = begin;  // from here on, errors have not left the block
    for (std::size_t c = begin; c < end; ++c) {
      if (c % group_ == 0) {
        if (c + group_ > end) {
          carry_behind(block, waiting, c);
          waiting = c;
        }
        choose_scales(c);
      }
      take_errors({.kind = facts_.code,
                   .values = column(c),
                   .scales = scales_.data(),
                   .zeros = zeros_.data(),
                   .errors = errors_of(c),
                   .rows = lanes_});
      const std::size_t place = (last_ - c) % kSide;
      carry(block, block, c, c + 1, place);
    }
    carry_behind(block, waiting, end);
  }

  /// Carries errors of columns [begin, end) of a block to all blocks behind it.
  void carry_behind(std::size_t block, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    for (std::size_t to = 0; to < block; ++to) carry(block, to, begin, end, kSide);
  }
  void carry(std::size_t block, std::size_t to, std::size_t begin, std::size_t end,
             std::size_t targets) {
    carry_errors({.factor = factor_.block(block, to),
                  .errors = errors_.data(),
                  .first = (last_ - (end - 1)) % kSide,
                  .end = (last_ - begin) % kSide + 1,
                  .columns = columns_.data() + to * kSide * lanes_,
                  .targets = targets,
                  .rows = lanes_});
  }

  /// Has the scheme choose the scales of the group that begins at a column: its rows lie one behind
  /// the other, as one row of so many groups; a search by moments sees them as rows.
  void choose_scales(std::size_t c) {
    panel_.resize(rows_ * group_);
    for (std::size_t i = 0; i < group_; ++i) {
      const float* values = column(c + i);
      for (std::size_t r = 0; r < rows_; ++r) {
        panel_[r * group_ + i] = values[r];
        if (!(std::fabs(values[r]) < kLargestCarried)) is_plain_[r] = 1;
      }
    }
    for (std::size_t r = 0; r < rows_; ++r) {
      if (is_plain_[r] != 0) std::fill_n(panel_.data() + r * group_, group_, 0.0F);
    }
    const bool is_row = in_.moments.empty();
    if (!in_.importance.empty() && is_row) {
      importance_.resize(rows_ * group_);
      for (std::size_t r = 0; r < rows_; ++r)
        std::copy_n(in_.importance.data() + c, group_, importance_.data() + r * group_);
    }
    EncodeInput groups = in_;
    groups.values = {
        .data = panel_.data(), .rows = 1, .cols = panel_.size(), .stride = panel_.size()};
    groups.block_cols = group_;
    groups.importance = importance_;
    if (!is_row) {
      groups.values = {.data = panel_.data(), .rows = rows_, .cols = group_, .stride = group_};
      if (!in_.importance.empty()) groups.importance = in_.importance.subspan(c, group_);
      groups.moments = in_.moments.subspan(c / kMomentBlock, group_ / kMomentBlock);
    }
    const std::size_t width = formats::dtype_bits(facts_.scale_dtype) / 8;
    codes_.resize(panel_.size() / 2);
    stored_.resize(rows_ * width);
    if (out_.zeros != nullptr) chosen_zeros_.resize(rows_);
    scheme_.encode(groups, {.weight = codes_.data(),
                            .weight_stride = is_row ? codes_.size() : group_ / 2,
                            .scales = stored_.data(),
                            .scale_stride = is_row ? stored_.size() : width,
                            .zeros = out_.zeros == nullptr ? nullptr : chosen_zeros_.data(),
                            .zero_stride = is_row ? chosen_zeros_.size() : 1});
    std::optional<formats::GlobalScale> global;
    if (scheme_.global != nullptr) global = {.value = in_.global, .divides = in_.global_divides};
    formats::widen_scales(facts_.scale_dtype, stored_, global, std::span(scales_).first(rows_));
    for (std::size_t r = 0; r < rows_; ++r) {
      std::memcpy(out_.scales + r * out_.scale_stride + c / group_ * width,
                  stored_.data() + r * width, width);
      effective_[r * (cols_ / group_) + c / group_] = scales_[r];
      if (out_.zeros != nullptr) {
        out_.zeros[r * out_.zero_stride + c / group_] = chosen_zeros_[r];
        effective_zeros_[r * (cols_ / group_) + c / group_] = chosen_zeros_[r];
        zeros_[r] = chosen_zeros_[r];
      }
      // Such a row is encoded in the end; until then it is one of zeros.
      if (is_plain_[r] == 0) continue;
      for (std::size_t i = 0; i < group_; ++i) column(c + i)[r] = 0;
    }
  }

  void write_codes() {
    panel_.resize(rows_ * cols_);
    for (std::size_t c = 0; c < cols_; ++c) {
      const float* values = column(c);
      for (std::size_t r = 0; r < rows_; ++r) panel_[r * cols_ + c] = values[r];
    }
    encode_codes(facts_.code,
                 {.values = {.data = panel_.data(), .rows = rows_, .cols = cols_, .stride = cols_},
                  .block_rows = 1,
                  .block_cols = group_,
                  .scales = effective_,
                  .zeros = effective_zeros_},
                 out_.weight, out_.weight_stride);
    for (std::size_t r = 0; r < rows_; ++r) {
      if (is_plain_[r] == 0) continue;
      EncodeInput row = in_;
      row.values.data = in_.values.row(r);
      row.values.rows = 1;
      scheme_.encode(row,
                     {.weight = out_.weight + r * out_.weight_stride,
                      .weight_stride = out_.weight_stride,
                      .scales = out_.scales + r * out_.scale_stride,
                      .scale_stride = out_.scale_stride,
                      .zeros = out_.zeros == nullptr ? nullptr : out_.zeros + r * out_.zero_stride,
                      .zero_stride = out_.zero_stride});
    }
  }

  const Scheme& scheme_;
  const formats::SchemeFacts& facts_;
  const EncodeInput& in_;
  const MomentsFactor& factor_;
  const EncodeOutput& out_;
  const std::size_t cols_, group_, last_, rows_, lanes_;
  std::vector<float> columns_;    // values at their turn, column by column in reverse order
  std::vector<float> errors_;     // of the block at hand
  std::vector<float> scales_;     // of the group at hand
  std::vector<float> zeros_;      // of the group at hand
  std::vector<float> effective_;  // of all groups
  std::vector<std::uint8_t> effective_zeros_, chosen_zeros_;
  std::vector<char> is_plain_;
  std::vector<float> panel_, importance_;
  std::vector<std::byte> codes_, stored_;
};

}  // namespace

MomentsFactor::MomentsFactor(std::size_t size) : size_(size), values_(triangle_values(size)) {}

std::optional<MomentsFactor> MomentsFactor::make(std::size_t size, std::size_t threads,
                                                 const ReadRow& read) {
  std::vector<float> mean_squares(size);
  Triangle triangle(size, read, mean_squares);
  if (!triangle.factor(threads)) return std::nullopt;
  MomentsFactor factor(size);
  factor.mean_squares_ = std::move(mean_squares);
  triangle.write(factor.values_);
  return factor;
}

std::uint64_t MomentsFactor::bytes(std::uint64_t size) {
  return triangle_values(size) * sizeof(float);
}

std::uint64_t MomentsFactor::bytes_to_make(std::uint64_t size) {
  const std::uint64_t panel = blocks_of(size) * kBlockValues * sizeof(double);
  return 3 * bytes(size) + panel + 2 * size * sizeof(double);
}

std::size_t MomentsFactor::blocks() const {
  return blocks_of(size_);
}

const float* MomentsFactor::block(std::size_t row, std::size_t col) const {
  return values_.data() + place_of(row, col);
}

bool can_carry_errors(formats::SchemeId id) {
  const formats::SchemeFacts& facts = formats::scheme_facts(id);
  return facts.quantized && facts.group_rows == 1 &&
         (facts.code == formats::CodeKind::kE2m1 || facts.code == formats::CodeKind::kInt4);
}

void encode_carrying_errors(const Scheme& scheme, const EncodeInput& in,
                            const MomentsFactor& factor, const EncodeOutput& out) {
  if (in.values.rows == 0 || in.values.cols == 0) return;
  Rows(scheme, in, factor, out).run();
}

std::uint64_t bytes_to_carry(std::uint64_t rows, std::uint64_t cols) {
  const std::uint64_t lanes = round_up(rows, std::uint64_t{kCarryRows});
  const std::uint64_t all_columns = blocks_of(cols) * kSide;
  // Columns, errors, scales, zero points, the panel of values and that of importance.
  return (lanes * (all_columns + kSide + cols / 16 + 2) + 2 * rows * cols) * sizeof(float) +
         rows * (cols / 16 + 2);
}

}  // namespace ingot::quantize
