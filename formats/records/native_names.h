#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/config/model_config.h"

namespace ingot::formats {

/// The name that DeepSeek's inference code gives to a stored tensor, e.g.
/// `model.layers.5.mlp.experts.17.gate_proj.weight_scale_inv` to
/// `layers.5.ffn.experts.17.w1.scale`; that of an MTP layer's own tensors is ours (docs/records.md,
/// "deepseek-mp"). Nullopt for names that the code does not have. Source: docs/records.md.
std::optional<std::string> native_name(std::string_view stored_name, const ModelConfig& config);

/// The way back. `is_scale` names end in `.weight_scale_inv` again.
std::optional<std::string> hub_name(std::string_view native_name, const ModelConfig& config);

}  // namespace ingot::formats
