#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace ingot::verify {

/// A sum over samples that are not independent: the tokens of a prompt or a document.
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

/// Draws of bootstrap_interval().
inline constexpr std::size_t kBootstrapDraws = 2000;

/// The 95% interval of the mean over all samples by bootstrap. The clusters are drawn anew
/// kBootstrapDraws times, as many as there are, with replacement; the interval reaches from the
/// 50th smallest to the 50th largest of the draws' means (sum / count). Draw d takes at its place i
/// the cluster that word d * C + i of SplitMix64's sequence names, so that figures over the same
/// clusters have the same draws on every machine. Clusters without samples are left out. Nullopt
/// for fewer than two others, and for sums that are no numbers.
std::optional<Interval> bootstrap_interval(std::span<const ClusterSum> clusters);

/// The 97.5% quantile of Student's t; `degrees` from 1 on.
double student_t(std::uint64_t degrees);

}  // namespace ingot::verify
