#include "quantize/tensor_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ingot::quantize {
namespace {

/// A finite value is its 24-bit mantissa times this.
double unit_of(std::size_t exponent) {
  return std::ldexp(1.0, static_cast<int>(std::max<std::size_t>(exponent, 1)) - 150);
}

}  // namespace

void TensorStatistics::accumulate(std::span<const float> values) {
  bool started = finite() > 0;
  count_ += values.size();
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t exponent = (bits >> 23) & 0xFFU;
    const std::uint32_t fraction = bits & 0x7FFFFFU;
    if (exponent == 0xFFU) {
      ++(fraction != 0 ? nans_ : infinities_);
      continue;
    }
    const float ordered = value + 0.0F;  // -0 becomes +0
    lowest_ = started ? std::min(lowest_, ordered) : ordered;
    highest_ = started ? std::max(highest_, ordered) : ordered;
    started = true;
    const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | 0x800000U;
    if (mantissa == 0) {
      ++zeros_;
      continue;
    }
    Bin& bin = bins_[exponent];
    const auto magnitude = static_cast<std::int64_t>(mantissa);
    const std::uint64_t square = mantissa * mantissa;
    ++bin.count;
    bin.mantissas += (bits >> 31) != 0 ? -magnitude : magnitude;
    bin.squares_low += square & 0xFFFFFFU;
    bin.squares_high += square >> 24;
  }
}

void TensorStatistics::merge(const TensorStatistics& other) {
  if (other.finite() > 0) {
    lowest_ = finite() > 0 ? std::min(lowest_, other.lowest_) : other.lowest_;
    highest_ = finite() > 0 ? std::max(highest_, other.highest_) : other.highest_;
  }
  count_ += other.count_;
  zeros_ += other.zeros_;
  nans_ += other.nans_;
  infinities_ += other.infinities_;
  for (std::size_t e = 0; e < kExponents; ++e) {
    bins_[e].count += other.bins_[e].count;
    bins_[e].mantissas += other.bins_[e].mantissas;
    bins_[e].squares_low += other.bins_[e].squares_low;
    bins_[e].squares_high += other.bins_[e].squares_high;
  }
}

float TensorStatistics::amax() const {
  return std::max(std::fabs(lowest_), std::fabs(highest_));
}

double TensorStatistics::mean() const {
  if (finite() == 0) return 0;
  double sum = 0;
  for (std::size_t e = 0; e < kExponents; ++e) {
    sum += static_cast<double>(bins_[e].mantissas) * unit_of(e);
  }
  return sum / static_cast<double>(finite());
}

double TensorStatistics::rms() const {
  if (finite() == 0) return 0;
  double sum = 0;
  for (std::size_t e = 0; e < kExponents; ++e) {
    const double squares = static_cast<double>(bins_[e].squares_high) * 0x1p24 +
                           static_cast<double>(bins_[e].squares_low);
    sum += squares * unit_of(e) * unit_of(e);
  }
  return std::sqrt(sum / static_cast<double>(finite()));
}

}  // namespace ingot::quantize
