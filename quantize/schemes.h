#pragma once

#include "quantize/scheme.h"

/// The rows of the registry, one per scheme; each is defined in the file of its arithmetic.
namespace ingot::quantize {

extern const Scheme kBf16Scheme;
extern const Scheme kF16Scheme;
extern const Scheme kF32Scheme;
extern const Scheme kFp8BlockScheme;
extern const Scheme kFp8ChannelScheme;
extern const Scheme kFp8TensorScheme;
extern const Scheme kInt8ChannelScheme;
extern const Scheme kInt8BlockScheme;
extern const Scheme kNvfp4Scheme;
extern const Scheme kMxfp4Scheme;
extern const Scheme kMxfp8Scheme;

/// Fused paths, listed in registry.cc.
DecodeFaults transcode_f32_to_bf16(const EncodedRows& in, std::span<std::byte> out);
DecodeFaults transcode_f16_to_bf16(const EncodedRows& in, std::span<std::byte> out);

}  // namespace ingot::quantize
