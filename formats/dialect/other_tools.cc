#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kFbgemm = "fbgemm_fp8", kQuark = "quark", kAutoRound = "auto-round",
                           kMinimax = "minimax_m3_nvfp4";

/// A form of Quark's weights that some scheme reads.
struct QuarkForm {
  std::string_view dtype, qscheme;
  SchemeId scheme{};           ///< kRaw: codes are read as their values
  bool has_exponents = false;  ///< groups of 32 columns with a power of two each
};
constexpr std::array kQuarkForms = {
    QuarkForm{"fp8_e4m3", "per_tensor", SchemeId::kFp8Tensor},
    QuarkForm{"fp8_e4m3", "per_channel", SchemeId::kFp8Channel},
    QuarkForm{"fp8_e4m3", "per_block", SchemeId::kFp8Block},
    QuarkForm{"fp8_e4m3", "per_group", SchemeId::kMxfp8, true},
    QuarkForm{"fp8_e5m2", "per_tensor", SchemeId::kRaw},
    QuarkForm{"fp8_e5m2", "per_channel", SchemeId::kRaw},
    QuarkForm{"fp8_e5m2", "per_group", SchemeId::kRaw, true},
    QuarkForm{"int8", "per_tensor", SchemeId::kInt8Channel},
    QuarkForm{"int8", "per_channel", SchemeId::kInt8Channel},
    QuarkForm{"fp4", "per_group", SchemeId::kMxfp4, true},
};

/// Older versions have one word for all MX forms.
std::string quark_dtype(const Json& weight) {
  const std::string dtype = text_at(weight, "dtype");
  return dtype == "mx" ? text_at(weight, "mx_element_dtype") : dtype;
}

const QuarkForm* quark_form(const Json& weight) {
  const std::string dtype = quark_dtype(weight), qscheme = text_at(weight, "qscheme");
  const bool has_exponents =
      json_member(weight, "group_size") == 32 && text_at(weight, "scale_format") == "e8m0";
  const auto form = std::ranges::find_if(kQuarkForms, [&](const QuarkForm& row) {
    return dtype == row.dtype && qscheme == row.qscheme && row.has_exponents <= has_exponents;
  });
  return form == kQuarkForms.end() ? nullptr : &*form;
}

/// Returns the name of an unread form of Quark; empty where the form is read, or there is none.
std::string unread_quark(const Json& layer) {
  const Json& weight = json_member(layer, "weight");
  if (!weight.is_object()) return {};
  const std::string dtype = quark_dtype(weight), qscheme = text_at(weight, "qscheme");
  const bool is_plain = dtype == "bfloat16" || dtype == "float16" || dtype == "float32";
  if (is_plain || quark_form(weight) != nullptr) return {};
  return fmt::format("{} {}", dtype.empty() ? "weights of no dtype" : dtype,
                     qscheme.empty() ? "of no qscheme" : qscheme);
}

/// Calls visit(layer) for the config of all modules and for those of some.
template <typename Visit>
void for_each_quark_layer(const Json& block, const Visit& visit) {
  visit(json_member(block, "global_quant_config"));
  for (const char* key : {"layer_quant_config", "layer_type_quant_config"}) {
    const Json& layers = json_member(block, key);
    if (!layers.is_object()) continue;
    for (const auto& [name, layer] : layers.items()) visit(layer);
  }
}

/// The config of a module: that of a pattern, else that of all.
const Json& quark_layer(const Json& block, std::string_view module) {
  const Json& layers = json_member(block, "layer_quant_config");
  if (layers.is_object()) {
    for (const auto& [name, layer] : layers.items()) {
      if (name == module || (name.find('*') != std::string::npos && Pattern(name).matches(module)))
        return layer;
    }
  }
  return json_member(block, "global_quant_config");
}

Activations quark_activations(const Json& layer) {
  const Json& inputs = json_member(layer, "input_tensors");
  if (!inputs.is_object()) return Activations::kWeightOnly;
  // Scales without their zero points say nothing.
  const bool is_static =
      json_member(inputs, "is_dynamic") == false && json_member(inputs, "symmetric") != false;
  return is_static ? Activations::kStatic : Activations::kDynamic;
}

/// The form that AutoRound's `packing_format` and `data_type` give weights that are no packed
/// integers.
std::string unread_auto_round(const Json& block) {
  constexpr std::array kFloatTypes = {"mx_fp", "nv_fp", "fp"};
  constexpr std::string_view kPartsFormat = "auto_round:llm_compressor",
                             kFp8Format = "auto_round:fp8";
  const std::string format = text_at(block, "packing_format"), type = text_at(block, "data_type");
  const Json& bits = json_member(block, "bits");
  const bool has_parts = format == kPartsFormat || format.starts_with(kFp8Format);
  const bool is_known = std::ranges::any_of(kFloatTypes, [&](const char* known) {
    return type == known || (bits.is_number_unsigned() &&
                             type == fmt::format("{}{}", known, bits.get<std::uint64_t>()));
  });
  if (has_parts && is_known) return {};
  return fmt::format("{}{}{}", type.empty() ? "weights" : type, format.empty() ? "" : " packed as ",
                     format);
}

/// The dialect, whose loaders read several schemes in one checkpoint.
Dialect mixture(Dialect dialect) {
  dialect.holds_mixtures = true;
  return dialect;
}

// The activations for a module by Quark's config or AutoRound's.
ConfigForms tools_forms(const ModelConfig& config, const Json&, std::vector<std::string>*) {
  return [&config](std::string_view weight) -> ConfigForm {
    const Json& block = quantization_block(config);
    if (method_of(config) == kGemmaMethod) return {.activations = Activations::kWeightOnly};
    if (method_of(config) == kMinimax) return {.activations = Activations::kDynamic};
    if (method_of(config) == kQuark) {
      const Json& layer = quark_layer(block, module_name(weight));
      return {.activations = quark_activations(layer),
              .because = "quantization_config",
              .has_zero_points = json_member(json_member(layer, "weight"), "symmetric") == false};
    }
    if (!is_auto_round(method_of(config))) return {};
    const Json& bits = json_member(block, "act_bits");
    if (!bits.is_number_unsigned() || bits > 8) return {.activations = Activations::kWeightOnly};
    const bool is_static = json_member(block, "act_dynamic") == false;
    return {.activations = is_static ? Activations::kStatic : Activations::kDynamic};
  };
}

}  // namespace

Dialect read_only(std::string_view name, std::string_view summary,
                  bool (*has_config)(const ModelConfig& config)) {
  const auto no_block = [](const WrittenModel&) -> Json {
    throw Error(ErrorCode::kUnsupported, "is in a dialect that is read and not written");
  };
  return {.name = name,
          .summary = summary,
          .methods = {name},
          .has_config = has_config,
          .storage = kCompressedTensorsDialect.storage,
          .is_read_only = true,
          .quantization_config = no_block,
          .config_forms = tools_forms};
}

std::string method_of(const ModelConfig& config) {
  return config.quantization ? config.quantization->quant_method : "";
}

bool is_auto_round(std::string_view method) {
  return method == kAutoRound || method == "intel/auto-round";
}

std::string unread_part(const ModelConfig& config) {
  const std::string method = method_of(config);
  const Json& block = quantization_block(config);
  if (is_auto_round(method)) return unread_auto_round(block);
  if (method != kQuark) return {};
  if (json_member(block, "global_quant_config").is_null() &&
      json_member(block, "layer_quant_config").is_null())
    return "weights of a custom mode";
  std::string unread;
  for_each_quark_layer(block, [&](const Json& layer) {
    if (unread.empty()) unread = unread_quark(layer);
  });
  return unread;
}

const Dialect kGemmaDialect = mixture(read_only(
    kGemmaMethod, "Google's Gemma in 2, 4 and 8 bits by row: read as compressed-tensors", nullptr));
const Dialect kMinimaxDialect = mixture(
    read_only(kMinimax, "MiniMax's MXFP8 with NVFP4 experts: read as compressed-tensors", nullptr));
const Dialect kFbgemmDialect =
    read_only(kFbgemm, "FBGEMM's FP8 with a scale per row: read as compressed-tensors", nullptr);
const Dialect kQuarkDialect =
    read_only(kQuark, "AMD Quark's FP8, INT8 and MXFP4: read as compressed-tensors",
              [](const ModelConfig& config) {
                return method_of(config) == kQuark && unread_part(config).empty();
              });
const Dialect kAutoRoundDialect =
    read_only(kAutoRound, "AutoRound's MXFP4, MXFP8, NVFP4 and FP8: read as compressed-tensors",
              [](const ModelConfig& config) {
                return is_auto_round(method_of(config)) && unread_part(config).empty();
              });

std::optional<SchemeId> quark_scheme(const Json& weight) {
  const QuarkForm* form = weight.is_object() ? quark_form(weight) : nullptr;
  return form == nullptr || form->scheme == SchemeId::kRaw ? std::nullopt
                                                           : std::optional(form->scheme);
}

bool has_zero_zero_points(const ModelConfig& config) {
  if (method_of(config) != kQuark) return false;
  bool is_symmetric = true;
  for_each_quark_layer(quantization_block(config), [&](const Json& layer) {
    const Json& weight = json_member(layer, "weight");
    if (weight.is_object() && json_member(weight, "symmetric") == false) is_symmetric = false;
  });
  return is_symmetric;
}

bool is_tool_description(std::string_view path) {
  constexpr std::array<std::string_view, 3> kNames = {"quantize_config.json", "quant_config.json",
                                                      "quantization_config.json"};
  constexpr std::string_view kModelslimStem = "quant_model_description";
  return std::ranges::find(kNames, path) != kNames.end() ||
         (path.starts_with(kModelslimStem) && path.ends_with(".json"));
}

}  // namespace ingot::formats
