#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/container/tensor.h"

namespace ingot::quantize {

/// Finite values and the effective scales of their groups. The run starts at the first row and
/// column of a group; groups at its end may be shorter.
struct ScaledGroups {
  formats::MatrixView<const float> values;
  std::uint64_t block_rows = 0, block_cols = 0;
  std::span<const float> scales;  ///< scales, not zero; row-major over the groups of the run
};

/// Codes of a run: each is value / scale (one FP32 division), rounded to the nearest code with ties
/// to even, saturating. `stride` counts bytes from row to row. Pure; the bytes are those of the
/// scalar twins on every SIMD target.

/// Encodes E4M3: at most 448 in magnitude; values that round to zero, and -0, keep their sign.
void encode_e4m3(const ScaledGroups& in, std::byte* codes, std::size_t stride);
/// Encodes INT8: -127 to 127.
void encode_int8(const ScaledGroups& in, std::byte* codes, std::size_t stride);
/// Encodes E2M1: at most 6 in magnitude, two codes in a byte (columns are even). Negative values
/// that round to zero become code 8, -0 becomes code 0.
void encode_e2m1(const ScaledGroups& in, std::byte* codes, std::size_t stride);
/// Encodes INT4: -8 to 7, stored with 8 added, two codes in a byte (columns are even). Scales may
/// be negative.
void encode_int4(const ScaledGroups& in, std::byte* codes, std::size_t stride);

namespace scalar {

void encode_e4m3(const ScaledGroups& in, std::byte* codes, std::size_t stride);
void encode_int8(const ScaledGroups& in, std::byte* codes, std::size_t stride);
void encode_e2m1(const ScaledGroups& in, std::byte* codes, std::size_t stride);
void encode_int4(const ScaledGroups& in, std::byte* codes, std::size_t stride);

}  // namespace scalar

}  // namespace ingot::quantize
