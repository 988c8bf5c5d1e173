#include "verify/layers/layer_choices.h"

#include <span>

namespace ingot::verify {
namespace {

// Both ascending.
double shared_part(std::span<const std::uint32_t> mine, std::span<const std::uint32_t> other) {
  std::size_t shared = 0, at = 0;
  for (const std::uint32_t id : mine) {
    while (at < other.size() && other[at] < id) ++at;
    if (at < other.size() && other[at] == id) ++shared;
  }
  return static_cast<double>(shared) / static_cast<double>(mine.size());
}

}  // namespace

inference::Taps LayerChoices::taps() {
  return {.hidden = {},
          .router =
              [this](std::size_t, std::span<const std::uint32_t> experts, std::span<const float>) {
                const auto mine = experts.first(experts.size() / all_rows_ * rows_);
                experts_.assign(mine.begin(), mine.end());
              },
          .indexer =
              [this](std::size_t, std::size_t row, std::span<const std::uint32_t> positions) {
                if (row < rows_) positions_[row].assign(positions.begin(), positions.end());
              }};
}

std::optional<double> LayerChoices::router_overlap(const LayerChoices& other) const {
  if (experts_.empty() || other.experts_.empty()) return std::nullopt;
  const std::size_t mine = experts_.size() / rows_, others = other.experts_.size() / rows_;
  double sum = 0;
  for (std::size_t r = 0; r < rows_; ++r) {
    sum += shared_part(std::span(experts_).subspan(r * mine, mine),
                       std::span(other.experts_).subspan(r * others, others));
  }
  return sum / static_cast<double>(rows_);
}

std::optional<double> LayerChoices::indexer_overlap(const LayerChoices& other) const {
  double sum = 0;
  std::size_t n = 0;
  for (std::size_t r = 0; r < rows_; ++r) {
    if (positions_[r].empty() || other.positions_[r].empty()) continue;
    sum += shared_part(positions_[r], other.positions_[r]);
    ++n;
  }
  if (n == 0) return std::nullopt;
  return sum / static_cast<double>(n);
}

}  // namespace ingot::verify
