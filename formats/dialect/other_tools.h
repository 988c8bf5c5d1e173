#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/config/model_config.h"
#include "formats/dialect/dialect.h"

// Configs of tools whose weights have the parts of other dialects: FBGEMM, AMD's Quark, and those
// of AutoRound that are not packed as AWQ and GPTQ. They are read and not written.

namespace ingot::formats {

/// The row of a dialect whose weights are seen as compressed-tensors stores them.
Dialect read_only(std::string_view name, std::string_view summary,
                  bool (*has_config)(const ModelConfig& config));

/// The config's quant_method, or empty.
std::string method_of(const ModelConfig& config);
bool is_auto_round(std::string_view method);

/// The form in the words of its tool that keeps a config of these methods from being read ("int4
/// per_group"), or empty.
std::string unread_part(const ModelConfig& config);

/// The scheme of Quark's config of weights; nullopt for plain ones, and for codes that no scheme
/// has.
std::optional<SchemeId> quark_scheme(const Json& weight);

/// True if Quark's config says that the integers of this weight have zero points.
bool has_zero_points(const ModelConfig& config, std::string_view weight);

/// True if Quark's config says that integers have no zero points: those that are stored are zeros.
bool has_zero_zero_points(const ModelConfig& config);

/// True if a file next to the weights has the settings of a tool that quantized them, as AutoGPTQ,
/// AutoAWQ, AutoRound and msmodelslim write them: without the codes they have no meaning.
bool is_tool_description(std::string_view path);

}  // namespace ingot::formats
