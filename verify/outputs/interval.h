#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace ingot::verify {

/// Differences of samples that are not independent: the tokens of a prompt.
struct ClusterSum {
  double sum = 0;
  std::uint64_t count = 0;
};

struct Interval {
  double low = 0, high = 0;
  [[nodiscard]] bool contains(double value) const { return low <= value && value <= high; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// The 95% interval of the mean over all samples, with clusters as the draws: sum / count of all,
/// its variance C / (C - 1) times the sum of (sum_c - mean count_c)^2 over count^2, and Student's t
/// of C - 1 degrees of freedom. Nullopt for fewer than two clusters with samples, and for sums that
/// are no numbers.
std::optional<Interval> mean_interval(std::span<const ClusterSum> clusters);

/// The 97.5% quantile of Student's t; `degrees` from 1 on.
double student_t(std::uint64_t degrees);

}  // namespace ingot::verify
