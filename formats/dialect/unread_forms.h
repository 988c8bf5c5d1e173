#pragma once

#include <optional>
#include <string_view>

#include "formats/base/error.h"
#include "formats/config/model_config.h"

namespace ingot::formats {

/// The refusal (kUnsupported) of what config.json says of quantization without a quant_method that
/// would say it: MLX's blocks, and rotations of compressed-tensors; nullopt where it has neither.
std::optional<Error> unread_form(const ModelConfig& config);
/// The refusal of a quant_method that no dialect has, with the tool whose form it is.
Error unread_method(std::string_view method);

}  // namespace ingot::formats
