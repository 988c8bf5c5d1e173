#pragma once

#include <cstddef>
#include <optional>

#include "formats/checkpoint/checkpoint.h"
#include "inference/kernels/quantized/quantized_matmul.h"

namespace ingot::inference {

/// Returns how profile kNative quantizes the input of a weight whose activations the source
/// declares as `activations`; nullopt where it stays as it is: plain and weight-only weights, and
/// NVFP4 without an input scale unless it is said to be static. Reads input scale and offset; of a
/// stack those of `matrix`. Static activations need an input scale (kMissingTensor), and MX has no
/// static form (kUnsupported); a scale must be finite and above zero (kBadScale), an offset a whole
/// INT8 number (kCorrupt).
std::optional<ActivationFormat> native_activations(const formats::TensorSource& source,
                                                   const formats::LogicalTensor& tensor,
                                                   std::size_t matrix,
                                                   formats::Activations activations);

}  // namespace ingot::inference
