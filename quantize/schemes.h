#pragma once

#include "quantize/scheme.h"

/// The rows of the registry, one per scheme; each is defined in the file of its scheme.
namespace ingot::quantize {

extern const Scheme kBf16Scheme;
extern const Scheme kF16Scheme;
extern const Scheme kF32Scheme;
extern const Scheme kFp8BlockScheme;

/// Fused paths, listed in registry.cc.
DecodeFaults transcode_f32_to_bf16(const EncodedRows& in, std::span<std::byte> out);
DecodeFaults transcode_f16_to_bf16(const EncodedRows& in, std::span<std::byte> out);

}  // namespace ingot::quantize
