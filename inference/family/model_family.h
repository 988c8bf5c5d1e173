#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "inference/model/spec/layer_spec.h"

namespace ingot::inference {

/// The numbers of a checkpoint's forward pass. Throws kUnsupported naming the family and those that
/// have one; kCorrupt naming a key of config.json that is missing, 0, or that contradicts another
/// (more experts per token than experts, groups that do not divide them).
ModelSpec model_spec(const formats::Family& family, const formats::ModelConfig& config);
/// Returns the numbers of a source's forward pass. Throws as for a config. A rank's widths are as
/// it stores them, but the vocabulary is that of the unsliced model: padding is no token.
ModelSpec model_spec(const formats::Checkpoint& source);

/// Facts about scaled rope that families of grouped attention may state in addition to RopeConfig.
struct RopeBands {
  bool truncate = true;  ///< YaRN: else its ramp begins and ends between pairs
  /// llama3: waves that turn fewer than `low` times in the original context are stretched, those
  /// that turn more than `high` times stay.
  double low = 1, high = 4;
  /// Factor on cos and sin; YaRN: replaces the factor computed from RopeConfig.
  std::optional<double> magnitude;
  std::vector<double> factors;  ///< longrope: factors of the period of each pair
  double part = 1;              ///< proportional: share of the pairs that turn, the first ones
};
/// Reads the facts of `rope_parameters` or `rope_scaling`. Unless a context `may_be_long`, longrope
/// has its short factors whatever the length of the context.
RopeBands rope_bands(const formats::ModelConfig& config, bool may_be_long = true);

/// Frequencies of the pairs of a rotated slice of `dim` values, with the scaling that the config
/// has (whatever the length of the context), computed in FP32 as transformers does. Throws
/// kUnsupported naming the type for any scaling but default, linear, yarn, llama3, longrope and
/// proportional, kCorrupt for numbers that make no table.
RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved,
                   const RopeBands& bands = {});

/// YaRN's factor of the softmax scale: g(factor, mscale_all_dim) squared, 1 without.
double yarn_softmax_factor(const formats::RopeConfig& config);

}  // namespace ingot::inference
