#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/container/tensor.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// Largest magnitudes. The SIMD targets agree with the scalar twins.

/// The largest magnitude of the finite values; 0 when there is none.
float finite_amax(const float* values, std::size_t n);

/// True if any value is NaN or infinite.
bool has_nonfinite(const float* values, std::size_t n);

/// The largest magnitude of the finite values of every group, row-major. The run starts at the
/// first row and column of a group; groups at its end may be shorter.
void group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                std::uint64_t block_cols, std::span<float> out);

/// Finds the largest magnitude of the values of E4M3 codes, except NaN, with one product per piece
/// of a row that lies in one group, since products grow with codes. Returns false where such a
/// product is not finite: then a smaller code might be the answer, and `largest` is not.
bool e4m3_amax(const CodedMatrix& in, float& largest);

namespace scalar {

float finite_amax(const float* values, std::size_t n);
bool has_nonfinite(const float* values, std::size_t n);
void group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                std::uint64_t block_cols, std::span<float> out);
bool e4m3_amax(const CodedMatrix& in, float& largest);

}  // namespace scalar

}  // namespace ingot::quantize
