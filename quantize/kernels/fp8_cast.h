#pragma once

#include <cstddef>
#include <span>

#include "quantize/scheme.h"

namespace ingot::quantize {

/// Casts a run of FP8 E4M3 block-scaled rows to BF16 words, in.rows x in.cols of them, contiguous.
///
/// Each value is float32(code) x scale: one FP32 multiplication, then round to nearest even to BF16
/// in integer arithmetic. Beyond the largest BF16 it is infinite. A NaN code becomes 0x7FC0 with
/// the sign of the code, and is counted; a product that is NaN because of the scale becomes the
/// same, uncounted (callers refuse scales that are not finite).
///
/// Any shape, block size, first row and first column. Rows follow each other without a gap,
/// `in.scales` must cover the run and `out` must hold it; all three are checked. Pure: disjoint
/// outputs may run concurrently. Runs on the best SIMD target of this processor; the bytes are
/// those of the scalar twin.
DecodeFaults cast_fp8_block_to_bf16(const CodedMatrix& in, std::span<std::byte> out);

namespace scalar {

/// The specification: element by element, without SIMD.
DecodeFaults cast_fp8_block_to_bf16(const CodedMatrix& in, std::span<std::byte> out);

}  // namespace scalar

}  // namespace ingot::quantize
