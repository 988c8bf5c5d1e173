#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/dialect/dialect.h"

// Keys, lists and types of single dialects, for the rules and readers that are about them.

namespace ingot::formats {

// DeepSeek's FP8.

/// Lists of modules that stay plain: transformers reads the first; vLLM and SGLang the second where
/// it is there.
inline constexpr const char* kModulesToNotConvert = "modules_to_not_convert";
inline constexpr const char* kIgnoredLayers = "ignored_layers";

/// True if such a list, sorted, exempts a weight or a module: by its name or that of one above it,
/// in either spelling.
bool is_exempt(const ModelConfig& config, std::string_view name,
               std::span<const std::string> modules);

/// The keys by which releases in FP8 say that their routed experts are MXFP4, in this word: Ling's,
/// and those of MiMo and Step.
inline constexpr const char* kExpertMethod = "routed_experts_quant_method";
inline constexpr const char* kStoreDtype = "store_dtype";
inline constexpr const char* kMxfp4Word = "mxfp4";
/// True if entries of kModulesToNotConvert may be ends of names: vLLM's Ling takes those.
bool lists_ends_of_names(const Json& block);
/// True if an entry is the end of a module's name, behind a dot.
bool has_end_of(std::span<const std::string> entries, std::string_view module);
/// True if a config of the dialect says that its routed experts are MXFP4, by either key.
bool says_mxfp4_experts(const ModelConfig& config);

// Forms that are read as other parts (formats/checkpoint/made_parts.cc).

/// MiMo's key for q, k and v in one matrix, and its word.
inline constexpr const char* kProjectionLayout = "attention_projection_layout";
inline constexpr const char* kFusedProjections = "fused_qkv";
/// quant_method of Google's Gemma in integers, with bits by module.
inline constexpr std::string_view kGemmaMethod = "gemma";

// msmodelslim's description.

/// A word by which msmodelslim's description says how a tensor is held.
struct DescribedType {
  std::string_view name;
  /// The scheme of such a weight, kBf16 for every plain one; nullopt when this version reads none.
  std::optional<SchemeId> scheme;
  Activations activations{};            ///< treatment, for quantized weights
  std::span<const PartRow> needs = {};  ///< parts without which loaders cannot compute
};

/// Null for a word that no loader knows.
const DescribedType* find_described_type(std::string_view name);

// Configs of tools whose weights have the parts of other dialects: FBGEMM, AMD's Quark, and those
// of AutoRound that are not packed as AWQ and GPTQ. They are read and not written.

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

/// True if Quark's config says that integers have no zero points: those that are stored are zeros.
bool has_zero_zero_points(const ModelConfig& config);

/// True if a file next to the weights has the settings of a tool that quantized them, as AutoGPTQ,
/// AutoAWQ, AutoRound and msmodelslim write them: without the codes they have no meaning.
bool is_tool_description(std::string_view path);

}  // namespace ingot::formats
