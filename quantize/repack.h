#pragma once

#include "quantize/scheme.h"

namespace ingot::quantize {

/// MXFP4 to NVFP4 without rounding: a block of 32 with scale 2^k becomes two of 16 with the same
/// codes and the E4M3 scale 2^k / global, where that is a power of two E4M3 can hold (2^-9 to 2^8
/// under the global below); other blocks are encoded again from their values. Source:
/// docs/formats.md, "MXFP4 to NVFP4".

/// Largest scale among the blocks that hold a code other than zero; 0 when there is none.
float largest_mxfp4_scale(const CodedMatrix& in);

/// Returns the global scale for `largest_scale`: scale x 2^-8 as multiplier or its reciprocal as
/// divisor, both exact; 1 for 0.
float repacked_global(float largest_scale, bool divides);

/// Repacks a run of whole rows; returns how many blocks of 16 kept their codes.
std::uint64_t repack_mxfp4_as_nvfp4(const CodedMatrix& in, float global, bool divides,
                                    const EncodeOptions& options, const EncodeOutput& out);

}  // namespace ingot::quantize
