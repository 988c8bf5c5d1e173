#pragma once

#include <span>

#include "formats/container/tensor.h"
#include "inference/base/profile.h"

namespace ingot::inference {

/// out = weight * x * 1/sqrt(mean(x^2) + eps) over each row, in FP32, the mean from sum_of_squares.
/// Unless the profile is kF32 the normalized value and its product with the weight are each rounded
/// to BF16, as transformers does. out may be x.
void rms_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
              float eps, formats::MatrixView<float> out);

/// out = (x - mean) / sqrt(variance + eps) * weight + bias over each row, in FP32, rounded once
/// unless the profile is kF32. The variance is biased. out may be x.
void layer_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
                std::span<const float> bias, float eps, formats::MatrixView<float> out);

}  // namespace ingot::inference
