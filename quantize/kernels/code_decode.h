#pragma once

#include "formats/container/tensor.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// FP32 values of a run of codes: each is code x scale, one FP32 multiplication. Where that is NaN
/// (the NaN code, or a scale that is not finite) it is the quiet NaN with the sign of the code.
/// Any shape, stride, block size, first row and first column; `in.scales` must cover the run and
/// `out` must have its shape. Pure; the values are those of the scalar twins on every SIMD target.

/// Decodes E4M3 and counts NaN codes.
DecodeFaults decode_e4m3(const EncodedRows& in, formats::MatrixView<float> out);
/// Decodes INT8 in two's complement, -128 included.
DecodeFaults decode_int8(const EncodedRows& in, formats::MatrixView<float> out);
/// Decodes E2M1, two codes in a byte; columns and stride are even.
DecodeFaults decode_e2m1(const EncodedRows& in, formats::MatrixView<float> out);
/// Decodes INT4, two codes 0 to 15 in a byte, each less the zero point of its group; columns and
/// stride are even. Takes `zeros` and `group_order`.
DecodeFaults decode_int4(const EncodedRows& in, formats::MatrixView<float> out);

namespace scalar {

DecodeFaults decode_e4m3(const EncodedRows& in, formats::MatrixView<float> out);
DecodeFaults decode_int8(const EncodedRows& in, formats::MatrixView<float> out);
DecodeFaults decode_e2m1(const EncodedRows& in, formats::MatrixView<float> out);
DecodeFaults decode_int4(const EncodedRows& in, formats::MatrixView<float> out);

}  // namespace scalar

}  // namespace ingot::quantize
