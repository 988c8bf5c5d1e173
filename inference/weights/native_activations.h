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

/// Returns the step to whose multiples, from -128 to 127 of them, a weight's inputs
/// (Part::kInputScale) or outputs (kOutputScale) are rounded in profile kNative, rounded to BF16; 0:
/// they are not. Only Google's Gemma has such steps, where codes have other numbers of bits. Throws
/// kBadScale for one that is not finite and above zero.
float native_step(const formats::TensorSource& source, const formats::LogicalTensor& tensor,
                  formats::Part part);

/// Rounds values to multiples of a step as transformers does in BF16: the value, the quotient and
/// the product are rounded to BF16, the quotient to a whole number (ties to even) between.
void round_to_steps(float step, MatrixView<float> values);

}  // namespace ingot::inference
