#pragma once

#include <cstddef>

#include "formats/storage/encoding.h"

// Steps of error feedback (quantize/error_feedback.h). Pure; the bits are those of the scalar twins
// on every SIMD target.

namespace ingot::quantize {

/// Side of the square blocks, row-major, of which a factor is made.
inline constexpr std::size_t kFactorBlock = 64;

// Steps of a Cholesky factorization by blocks. Each element is that of the textbook's loop:
// products are taken from it one by one, in the order of their index, each rounded, and then it is
// divided; so neither blocks nor threads nor vectors change a bit.

/// Takes the product of two blocks from a third: c[i][k] -= a[i][m] x b[m][k], for m from 0 on.
void subtract_product(const double* a, const double* b, double* c);

/// Solves X L' = C for a lower triangle L. Holds C transposed at first, and then X transposed.
void solve_block(const double* lower, double* x);

namespace scalar {
void subtract_product(const double* a, const double* b, double* c);
void solve_block(const double* lower, double* x);
}  // namespace scalar

/// Rows that are worked on together are a multiple of it.
inline constexpr std::size_t kCarryRows = 32;

// Columns of weights are runs of `rows` FP32 numbers, one behind the other.

/// One column at its turn, and the scale of each row's group, above zero, and its zero point.
/// `errors` holds the weights as they were, and becomes what the codes miss of them: weight - code
/// x scale, with the nearest code (kernels/codes.h) of the value at its turn.
struct ColumnAtTurn {
  formats::CodeKind kind;  ///< kE2m1 or kInt4
  const float* values;
  const float* scales;
  const float* zeros;  ///< kInt4: numbers from 0 to 15
  float* errors;
  std::size_t rows;
};
void take_errors(const ColumnAtTurn& column);

/// Errors of columns `first` to `end` of a block of the factor, to be carried to columns
/// [0, targets) of another block or the same: column k becomes itself plus error x
/// factor[column][k], for one column after another from end - 1 down to `first`, each product and
/// each sum rounded.
struct CarriedErrors {
  const float* factor;  ///< kFactorBlock x kFactorBlock
  const float* errors;  ///< kFactorBlock x rows
  std::size_t first, end;
  float* columns;
  std::size_t targets;
  std::size_t rows;
};
void carry_errors(const CarriedErrors& carried);

namespace scalar {
void take_errors(const ColumnAtTurn& column);
void carry_errors(const CarriedErrors& carried);
}  // namespace scalar

}  // namespace ingot::quantize
