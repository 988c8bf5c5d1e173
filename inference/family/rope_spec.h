#pragma once

#include <cstddef>

#include "formats/config/model_config.h"
#include "inference/model/step/model_spec.h"

namespace ingot::inference {

/// Frequencies of the pairs of a rotated slice of `dim` values, with YaRN where the config has it
/// (whatever the length of the context), computed in FP32 as transformers does. kUnsupported naming
/// the type for any scaling but default and yarn, kCorrupt for numbers that make no table.
RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved);

/// What YaRN multiplies the softmax scale by: g(factor, mscale_all_dim) squared, 1 without.
double yarn_softmax_factor(const formats::RopeConfig& config);

}  // namespace ingot::inference
