#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot::quantize {

/// Statistics of a tensor's decoded values for `ingot inspect`. Sums are exact (integer sums of
/// mantissas per exponent), so the result depends neither on the order of the values nor on how
/// they were split and merged. Exact for up to 2^39 values.
class TensorStatistics {
 public:
  static constexpr std::size_t kExponents = 255;  ///< biased F32 exponents of finite values

  /// Adds values, in any order and division.
  void accumulate(std::span<const float> values);
  /// Adds the values of another instance.
  void merge(const TensorStatistics& other);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t zeros() const { return zeros_; }  ///< zeros of either sign
  [[nodiscard]] std::uint64_t nans() const { return nans_; }
  [[nodiscard]] std::uint64_t infinities() const { return infinities_; }
  [[nodiscard]] std::uint64_t finite() const { return count_ - nans_ - infinities_; }
  /// Smallest and largest of the finite values; 0 when there are none. A zero is reported as +0.
  [[nodiscard]] float min() const { return lowest_; }
  [[nodiscard]] float max() const { return highest_; }
  [[nodiscard]] float amax() const;
  [[nodiscard]] double mean() const;
  [[nodiscard]] double rms() const;
  /// Number of nonzero finite values with this biased F32 exponent: those of magnitude [2^(e-127),
  /// 2^(e-126)), and for e = 0 the subnormal ones.
  [[nodiscard]] std::uint64_t in_exponent(std::size_t e) const { return bins_[e].count; }

 private:
  struct Bin {
    std::uint64_t count = 0;
    std::int64_t mantissas = 0;      // signed, 24 bits each
    std::uint64_t squares_low = 0;   // low and
    std::uint64_t squares_high = 0;  // high 24 bits of mantissa squares
  };

  std::array<Bin, kExponents> bins_{};
  std::uint64_t count_ = 0;
  std::uint64_t zeros_ = 0;
  std::uint64_t nans_ = 0;
  std::uint64_t infinities_ = 0;
  float lowest_ = 0;  // meaningful once finite() > 0
  float highest_ = 0;
};

}  // namespace ingot::quantize
