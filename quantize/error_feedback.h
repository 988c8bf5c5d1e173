#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "quantize/scheme.h"

namespace ingot::quantize {

/// How the error of each column of a weight is carried on to the columns behind it, so that the
/// outputs of the layer change least on inputs of given second moments. One factor serves all
/// weights with the same input.
///
/// With M the moments, damped, and M = (F + 1) D (F + 1)' for F strictly upper and D diagonal: the
/// factor is F. Damping: 0.01 x the mean of M's diagonal is added to the diagonal. A column whose
/// diagonal is 0, an input never seen, gets and gives no error, and does not count in the mean. M
/// is read from its diagonal on; F is computed in double, from the last column to the first, as
/// Cholesky's factor divided by its diagonal, and rounded to FP32. Its bits depend on M only.
class MomentsFactor {
 public:
  /// Reads row `row` of M, FP32 [size], into `out`.
  using ReadRow = std::function<void(std::size_t row, std::span<float> out)>;

  /// Returns nullopt where M, damped, is not positive definite.
  static std::optional<MomentsFactor> make(std::size_t size, std::size_t threads,
                                           const ReadRow& read);
  /// Bytes of the factor of `size` columns, and those that making it takes, the result included.
  static std::uint64_t bytes(std::uint64_t size);
  static std::uint64_t bytes_to_make(std::uint64_t size);

  [[nodiscard]] std::size_t size() const { return size_; }
  /// The diagonal of M, before it is damped.
  [[nodiscard]] std::span<const float> mean_squares() const { return mean_squares_; }
  /// Side of the square of blocks: columns are in reverse order, behind as many of zeros as fill
  /// the first block.
  [[nodiscard]] std::size_t blocks() const;
  /// A block of the triangle, `col` <= `row`: at [i][k] the factor of column k for errors of column
  /// i.
  [[nodiscard]] const float* block(std::size_t row, std::size_t col) const;

 private:
  explicit MomentsFactor(std::size_t size);

  std::size_t size_;
  std::vector<float> values_, mean_squares_;
};

/// True if weights can become this scheme with errors carried on: E2M1 and INT4 codes under a scale
/// per group of columns of one row.
bool can_carry_errors(formats::SchemeId id);

/// Encodes whole rows of a matrix as Scheme::encode does, but column by column: the value of column
/// k at its turn is weight + sum of e_j x F_jk over the columns j before it, in their order, where
/// e_j is weight - code x scale. Its code is the one nearest to value / scale. A group's scale is
/// chosen by the scheme from the values that its columns have when the first of them is at its
/// turn, zero points with it. All in FP32, each product and sum rounded. A row with a value of 2^100 or more is encoded
/// without. `in` is as for Scheme::encode, without given scales; its values have factor.size()
/// columns. Rows do not depend on each other.
void encode_carrying_errors(const Scheme& scheme, const EncodeInput& in,
                            const MomentsFactor& factor, const EncodeOutput& out);
/// Bytes that it allocates for so many rows and columns.
std::uint64_t bytes_to_carry(std::uint64_t rows, std::uint64_t cols);

}  // namespace ingot::quantize
