#include "verify/calibrate/moment_sums.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::verify {

namespace {

// Tokens whose products are added to a sum while it is in a register.
constexpr std::size_t kTokensAtOnce = 256;
constexpr std::size_t kGroupsOfBlock = 2;

std::size_t groups_of(std::size_t width) {
  return (width + kMomentGroup - 1) / kMomentGroup;
}

std::size_t count_of(std::size_t n_groups, MomentExtent extent) {
  constexpr std::size_t kSquare = kMomentGroup * kMomentGroup;
  // The rows of group g have g + 1 groups of columns, those of blocks one and two in turn.
  return extent == MomentExtent::kWhole ? kSquare * (n_groups * (n_groups + 1) / 2)
                                        : kSquare * (n_groups / 2 * 3 + n_groups % 2);
}

// Panels of some tokens; inputs behind the last are zeros.
std::vector<double> panels_of(formats::MatrixView<const float> x, std::size_t first, std::size_t n,
                              std::size_t threads) {
  const std::size_t n_groups = groups_of(x.cols);
  std::vector<double> panels(n_groups * n * kMomentGroup);
  parallel_for(n_groups, threads, [&](std::size_t group) {
    const std::size_t column = group * kMomentGroup;
    const std::size_t n_columns = std::min(kMomentGroup, x.cols - column);
    double* to = panels.data() + group * n * kMomentGroup;
    for (std::size_t t = 0; t < n; ++t, to += kMomentGroup) {
      const float* from = x.row(first + t) + column;
      for (std::size_t c = 0; c < n_columns; ++c) to[c] = double{from[c]};
    }
  });
  return panels;
}

}  // namespace

namespace scalar {

void add_moments(const MomentBand& band) {
  const std::size_t n_columns = band.n_panels * kMomentGroup;
  for (std::size_t t = 0; t < band.n_tokens; ++t) {
    for (std::size_t r = 0; r < kMomentGroup; ++r) {
      for (std::size_t c = 0; c < n_columns; ++c) {
        const double* panel = band.columns + c / kMomentGroup * band.n_tokens * kMomentGroup;
        band.sums[r * n_columns + c] +=
            band.rows[t * kMomentGroup + r] * panel[t * kMomentGroup + c % kMomentGroup];
      }
    }
  }
}

}  // namespace scalar

MomentSums::MomentSums(std::size_t width, MomentExtent extent)
    : width_(width),
      n_groups_(groups_of(width)),
      extent_(extent),
      sums_(count_of(n_groups_, extent)) {
  INGOT_CHECK(extent == MomentExtent::kWhole || width % (kGroupsOfBlock * kMomentGroup) == 0);
}

std::size_t MomentSums::first_group(std::size_t group) const {
  return extent_ == MomentExtent::kWhole ? 0 : group / kGroupsOfBlock * kGroupsOfBlock;
}

std::size_t MomentSums::offset(std::size_t group) const {
  return count_of(group, extent_);
}

void MomentSums::add(formats::MatrixView<const float> x, std::size_t threads) {
  INGOT_CHECK(x.cols == width_);
  for (std::size_t first = 0; first < x.rows; first += kTokensAtOnce) {
    const std::size_t n = std::min(kTokensAtOnce, x.rows - first);
    const std::vector<double> panels = panels_of(x, first, n, threads);
    const auto add_group = [&](std::size_t group) {
      const std::size_t from = first_group(group);
      add_moments({.rows = panels.data() + group * n * kMomentGroup,
                   .columns = panels.data() + from * n * kMomentGroup,
                   .n_panels = group - from + 1,
                   .n_tokens = n,
                   .sums = sums_.data() + offset(group)});
    };
    // A short and a long group of rows together.
    parallel_for((n_groups_ + 1) / 2, threads, [&](std::size_t i) {
      add_group(i);
      if (n_groups_ - 1 - i != i) add_group(n_groups_ - 1 - i);
    });
  }
  tokens_ += x.rows;
}

double MomentSums::at(std::size_t i, std::size_t j) const {
  const auto [column, row] = std::minmax(i, j);
  const std::size_t group = row / kMomentGroup, from = first_group(group);
  INGOT_CHECK(row < width_ && column >= from * kMomentGroup);
  return sums_[offset(group) + row % kMomentGroup * (group - from + 1) * kMomentGroup + column -
               from * kMomentGroup];
}

double MomentSums::trace() const {
  double sum = 0;
  for (std::size_t i = 0; i < width_; ++i) sum += at(i, i);
  return sum;
}

void MomentSums::include(const MomentSums& other) {
  INGOT_CHECK(other.width_ == width_ && other.extent_ == extent_);
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  tokens_ += other.tokens_;
}

void MomentSums::clear() {
  std::ranges::fill(sums_, 0.0);
  tokens_ = 0;
}

std::uint64_t MomentSums::memory(std::size_t width, MomentExtent extent) {
  return count_of(groups_of(width), extent) * sizeof(double) + sizeof(MomentSums);
}

std::uint64_t MomentSums::scratch(std::size_t width) {
  return kTokensAtOnce * groups_of(width) * kMomentGroup * sizeof(double);
}

}  // namespace ingot::verify
