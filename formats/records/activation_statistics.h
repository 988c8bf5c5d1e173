#pragma once

#include <string_view>

// Names of tensors in a file of activation statistics (docs/formats.md, "Activation statistics"):
// MODULE followed by one of these, MODULE as module_name() of a linear's weight, or LAYER
// (`model.layers.3`).

namespace ingot::formats {

inline constexpr std::string_view kInputAmax = ".input_amax";               // F32 [1]
inline constexpr std::string_view kInputMin = ".input_min";                 // F32 [1]
inline constexpr std::string_view kInputMax = ".input_max";                 // F32 [1]
inline constexpr std::string_view kInputMeanSquare = ".input_mean_square";  // F32 [K]
inline constexpr std::string_view kExpertTokens = ".expert_tokens";         // I64 [E]

}  // namespace ingot::formats
