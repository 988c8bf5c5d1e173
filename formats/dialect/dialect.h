#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/encoding.h"
#include "formats/json.h"
#include "formats/model_config.h"

namespace ingot::formats {

/// What an output holds, from which a dialect derives the JSON around it.
struct WrittenTensor {
  std::string_view name;  ///< canonical name of the logical tensor
  SchemeId scheme{};
  bool fp8_by_default = false;  ///< the family's release quantizes it
};

/// What the parts are called and what the JSON around them says. A row in a table.
struct Dialect {
  std::string_view name;
  std::string_view summary;
  std::span<const SchemeId> holds;  ///< quantized schemes it can hold beside plain tensors
  /// Suffix of the scale tensor of `X.weight`, replacing `.weight`; first is what we write.
  std::span<const std::string_view> scale_suffixes;
  /// The value of config.json's `quantization_config` for these tensors, null when none is
  /// quantized. `source` is the source's config, whose block is kept where it still holds.
  Json (*quantization_config)(const ModelConfig& source, std::span<const WrittenTensor> written);
};

std::span<const Dialect* const> dialects();
const Dialect* find_dialect(std::string_view name);
/// The dialect that the config's quant_method names; deepseek when there is none. kUnsupported for
/// any other method.
const Dialect& dialect_of(const ModelConfig& config);

/// The name of a part's stored tensor, e.g. kScale of `X.weight` in deepseek is
/// `X.weight_scale_inv`.
std::string part_name(const Dialect& dialect, std::string_view weight_name, Part part);

/// Rows and columns that share a scale in the FP8 weights of this checkpoint: `weight_block_size`,
/// or the `block_structure` of compressed-tensors' config_groups; 128 x 128 where the config says
/// nothing. kUnsupported when it says that FP8 weights are scaled some other way, or in blocks of
/// several sizes.
std::array<std::uint64_t, 2> fp8_block_size(const ModelConfig& config);

}  // namespace ingot::formats
