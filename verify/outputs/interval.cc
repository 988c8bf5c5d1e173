#include "verify/outputs/interval.h"

#include <array>
#include <cmath>

namespace ingot::verify {

double student_t(std::uint64_t degrees) {
  // Few degrees from the distribution's tables, more by its expansion around the normal quantile.
  constexpr std::array kFew = {12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
                               2.446912,  2.364624, 2.306004, 2.262157, 2.228139};
  if (degrees <= kFew.size()) return kFew.at(degrees - 1);
  constexpr double kZ = 1.959963985, kZ3 = kZ * kZ * kZ, kZ5 = kZ3 * kZ * kZ, kZ7 = kZ5 * kZ * kZ;
  const auto v = static_cast<double>(degrees);
  return kZ + (kZ3 + kZ) / (4 * v) + (5 * kZ5 + 16 * kZ3 + 3 * kZ) / (96 * v * v) +
         (3 * kZ7 + 19 * kZ5 + 17 * kZ3 - 15 * kZ) / (384 * v * v * v);
}

std::optional<Interval> mean_interval(std::span<const ClusterSum> clusters) {
  double sum = 0;
  std::uint64_t count = 0, n_clusters = 0;
  for (const ClusterSum& cluster : clusters) {
    sum += cluster.sum;
    count += cluster.count;
    n_clusters += cluster.count > 0 ? 1 : 0;
  }
  if (n_clusters < 2 || !std::isfinite(sum)) return std::nullopt;
  const auto n = static_cast<double>(count), c = static_cast<double>(n_clusters);
  const double mean = sum / n;
  double squares = 0;
  for (const ClusterSum& cluster : clusters) {
    const double rest = cluster.sum - mean * static_cast<double>(cluster.count);
    squares += rest * rest;
  }
  const double half = student_t(n_clusters - 1) * std::sqrt(c / (c - 1) * squares) / n;
  return Interval{.low = mean - half, .high = mean + half};
}

}  // namespace ingot::verify
