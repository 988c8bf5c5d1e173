#include "verify/outputs/interval.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

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

namespace {

// Word n of SplitMix64's sequence from the state 0 (Steele, Lea and Flood, 2014).
std::uint64_t split_mix_word(std::uint64_t n) {
  n = (n + 1) * 0x9E3779B97F4A7C15U;
  n = (n ^ (n >> 30U)) * 0xBF58476D1CE4E5B9U;
  n = (n ^ (n >> 27U)) * 0x94D049BB133111EBU;
  return n ^ (n >> 31U);
}

}  // namespace

std::optional<Interval> bootstrap_interval(std::span<const ClusterSum> clusters) {
  std::vector<ClusterSum> filled;
  double sum = 0;
  for (const ClusterSum& cluster : clusters) {
    if (cluster.count == 0) continue;
    filled.push_back(cluster);
    sum += cluster.sum;
  }
  if (filled.size() < 2 || !std::isfinite(sum)) return std::nullopt;
  const std::uint64_t n = filled.size();
  std::vector<double> means;
  for (std::uint64_t draw = 0; draw < kBootstrapDraws; ++draw) {
    ClusterSum drawn;
    for (std::uint64_t i = 0; i < n; ++i) {
      // The upper half of a word times n has the index in its own upper half.
      const ClusterSum& cluster = filled[(split_mix_word(draw * n + i) >> 32U) * n >> 32U];
      drawn.sum += cluster.sum;
      drawn.count += cluster.count;
    }
    means.push_back(drawn.sum / static_cast<double>(drawn.count));
  }
  constexpr std::size_t kBeyond = kBootstrapDraws / 40;  // 2.5% at each end
  std::ranges::sort(means);
  return Interval{.low = means[kBeyond - 1], .high = means[kBootstrapDraws - kBeyond]};
}

}  // namespace ingot::verify
