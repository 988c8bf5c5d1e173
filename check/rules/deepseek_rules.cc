#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "check/rules/rule_input.h"
#include "engines/modules/module_lists.h"
#include "formats/container/float8.h"
#include "formats/dialect/deepseek.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

// DeepSeek's own config says little: which modules are quantized follows from the model's code. So
// FP8 and INT8 under it make the same tests; the schemes of a row say which of the two is meant.

namespace ingot::check {

namespace {

using enum Severity;

bool is_int8(const RuleInput& input) {
  return input.is_about(SchemeId::kInt8Block);
}

std::string_view word(const RuleInput& input) {
  return is_int8(input) ? "INT8" : "FP8";
}

bool is_code(const RuleInput& input, DType dtype) {
  return is_int8(input) ? dtype == DType::kI8 : is_float8(dtype);
}

bool has_codes(const RuleInput& input) {
  const auto stored = input.checkpoint.stored();
  return std::any_of(stored.begin(), stored.end(),
                     [&](const StoredTensor& tensor) { return is_code(input, tensor.dtype); });
}

/// Whether the config promises weights of the row's kind.
bool claims(const RuleInput& input) {
  const std::string_view method = is_int8(input) ? "blockwise_int8" : "fp8";
  return input.said() != nullptr && input.said()->quant_method.find(method) != std::string::npos;
}

/// quantization_config where it promises such weights and there are some, else null.
const Json* block_over_codes(const RuleInput& input) {
  return claims(input) && has_codes(input) ? input.facts.quantization : nullptr;
}

// The modules that the config exempts, in either spelling; sorted.
std::vector<std::string> ignored_modules(const RuleInput& input) {
  std::vector<std::string> modules;
  const Json* block = input.facts.quantization;
  if (block == nullptr) return modules;
  for (const char* key : {formats::kIgnoredLayers, formats::kModulesToNotConvert}) {
    for (std::string& module : strings_at(*block, key)) modules.push_back(std::move(module));
  }
  std::ranges::sort(modules);
  return modules;
}

void config_present(const RuleInput& input) {
  // Without a config at all the structure has said so.
  if (!input.checkpoint.config().raw->is_object() || input.said() != nullptr || !has_codes(input))
    return;
  input.report_config(
      ErrorCode::kNotFound,
      "has no quantization_config, but there are FP8 weights (copy it from the release, or ingot "
      "repair makes one)");
}

void config_without_weights(const RuleInput& input) {
  if (input.checkpoint.stored().empty() || !claims(input) || has_codes(input) ||
      is_part_of_model(input.checkpoint) || input.has_decoded())
    return;
  // The block speaks of experts in FP4 too.
  if (formats::is_native(input.dialect(), input.checkpoint.family()) &&
      std::ranges::any_of(input.checkpoint.tensors(),
                          [](const LogicalTensor& tensor) { return is_quantized(tensor); }))
    return;
  input.report_config(ErrorCode::kMismatch,
                      fmt::format("promises {0} weights, but no weight is {0} (remove "
                                  "quantization_config)",
                                  word(input)));
}

void activation_scheme(const RuleInput& input) {
  if (!claims(input)) return;
  const auto has_key = [&](const char* key) {
    const Json* block = input.facts.quantization;
    return block != nullptr && !json_member(*block, key).is_null();
  };
  const std::string& scheme = input.said()->activation_scheme;
  if (!has_key("activation_scheme")) {
    input.report_config(ErrorCode::kNotFound,
                        "quantization_config has no activation_scheme (\"dynamic\")");
  } else if (scheme != "dynamic" && has_key("weight_block_size")) {
    input.report_config(
        ErrorCode::kUnsupported,
        fmt::format("activation_scheme is '{}', block scales need 'dynamic'", scheme));
  }
}

void block_size(const RuleInput& input) {
  const Json* block = block_over_codes(input);
  if (block == nullptr) return;
  const Json& size = json_member(*block, "weight_block_size");
  const auto tensors = input.checkpoint.tensors();
  const auto has = [&](SchemeId scheme) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
      return tensor.encoding.scheme == scheme;
    });
  };
  if (has(SchemeId::kFp8Tensor) && !has(SchemeId::kFp8Block)) {
    if (size.is_null()) return;
    input.report_config(ErrorCode::kMismatch,
                        "quantization_config has a weight_block_size, but no weight has a scale "
                        "per block (remove it)");
    return;
  }
  const auto is_positive = [](const Json& n) { return n.is_number_unsigned() && n != 0; };
  if (size.is_array() && size.size() == 2 && std::all_of(size.begin(), size.end(), is_positive))
    return;
  input.report_config(
      ErrorCode::kCorrupt,
      "quantization_config has no weight_block_size of two positive numbers ([128, 128])");
}

void weight_quantized(const RuleInput& input) {
  if (!claims(input) || !has_codes(input)) return;
  const std::vector<std::string> ignored = ignored_modules(input);
  for (const LogicalTensor& tensor : input.checkpoint.tensors()) {
    if (tensor.rule == nullptr || !tensor.rule->fp8_by_default) continue;
    const DType dtype = input.codes_of(tensor).dtype;
    if (is_quantized(tensor) || is_decoded(tensor.encoding) || is_code(input, dtype) ||
        engines::is_exempt(input.checkpoint, tensor.name, ignored))
      continue;
    input.report_kind(tensor, ErrorCode::kDtypeMismatch,
                      fmt::format("is {} where loaders expect {} and a scale (list its module in "
                                  "modules_to_not_convert)",
                                  dtype_name(dtype), word(input)));
  }
}

void native_plain_module(const RuleInput& input) {
  const auto rules = input.checkpoint.family().rules;
  if (std::none_of(rules.begin(), rules.end(),
                   [](const TensorRule& rule) { return rule.fp8_by_default; }))
    return;
  for (const LogicalTensor& tensor : input.checkpoint.tensors()) {
    if (tensor.rule == nullptr || can_be_quantized(input.dialect(), *tensor.rule)) continue;
    const DType dtype = input.codes_of(tensor).dtype;
    if (!is_code(input, dtype)) continue;
    input.report_kind(
        tensor, ErrorCode::kDtypeMismatch,
        fmt::format("is {}, but loaders build this module unquantized", dtype_name(dtype)));
  }
}
void ue8m0_claim(const RuleInput& input) {
  if (input.said() == nullptr || input.said()->scale_fmt != "ue8m0") return;
  // Zero and infinity are the business of fp8.scale-values.
  const auto is_odd = [](float scale) {
    return scale > 0 && std::isfinite(scale) && !formats::is_e8m0_value(scale);
  };
  std::vector<const StoredTensor*> scales;
  for (const LogicalTensor& tensor : input.checkpoint.tensors()) {
    const StoredTensor* scale = input.part_of(tensor, Part::kScale);
    if (scale != nullptr && input.is_about(tensor.encoding.scheme)) scales.push_back(scale);
  }
  input.report_odd(
      find_odd_scales(input.search(), scales, is_odd), ErrorCode::kMismatch,
      [](const OddValues& odd) {
        return fmt::format(
            "{} of {} scales are not powers of two, the first is {} at element {}, but config.json "
            "says scale_fmt ue8m0 (remove it)",
            odd.n, odd.total, odd.value, odd.first);
      });
}

void ue8m0_unsaid(const RuleInput& input) {
  if (input.said() == nullptr || !input.said()->scale_fmt.empty()) return;
  const auto stored = input.checkpoint.stored();
  const bool can_read = std::all_of(stored.begin(), stored.end(), [&](const StoredTensor& tensor) {
    return input.checkpoint.has_data(tensor.file);
  });
  if (!can_read || !all_scales_are_powers_of_two(input.checkpoint)) return;
  input.report_config(ErrorCode::kNotFound,
                      "every scale is a power of two, but quantization_config has no scale_fmt "
                      "\"ue8m0\": engines then quantize activations under other scales");
}

void format_words(const RuleInput& input) {
  const Json* block = input.facts.quantization;
  if (block == nullptr || input.said() == nullptr || input.said()->quant_method != "fp8") return;
  const auto require = [&](std::string_view key, std::string_view only, std::string_view or_this) {
    const Json& value = json_member(*block, key);
    if (value.is_null() || value == only || value == or_this) return;
    input.report_config(ErrorCode::kMismatch,
                        fmt::format("quantization_config.{} is {}, loaders know only \"{}\"", key,
                                    config_text(value), only));
  };
  require("fmt", "e4m3", "float8_e4m3fn");
  require("scale_fmt", "ue8m0", "ue8m0");
}
void experts_said(const RuleInput& input) {
  const Json* block = input.facts.quantization;
  if (block == nullptr || !formats::is_native(input.dialect(), input.checkpoint.family())) return;
  const bool is_said = json_member(*block, "moe_quant_algo") == "NVFP4";
  for (const LogicalTensor& tensor : input.checkpoint.tensors()) {
    const bool is_expert = is_routed_expert(role_of(tensor));
    const bool is_draft =
        tensor.layer && *tensor.layer >= input.checkpoint.config().num_hidden_layers;
    if (!is_expert || is_draft || !is_quantized(tensor)) continue;
    if ((tensor.encoding.scheme == SchemeId::kNvfp4) == is_said) continue;
    input.report_kind(tensor, ErrorCode::kMismatch,
                      fmt::format("is {}, but quantization_config says {} (ingot repair makes "
                                  "the block again)",
                                  facts_of(tensor).name,
                                  is_said ? "moe_quant_algo NVFP4" : "no moe_quant_algo NVFP4"));
  }
}

constexpr std::string_view kDeepseek = "deepseek";

constexpr LoaderRule kRules[] = {
    {"fp8.config-present", kDeepseek, "all", kError,
     "a checkpoint with FP8 weights has a quantization_config", config_present, has_e4m3_codes},
    {"fp8.config-without-weights", kDeepseek, "all", kError,
     "a checkpoint with a quantization_config of method fp8 has FP8 weights",
     config_without_weights, has_e4m3_codes},
    {"fp8.activation-scheme", kDeepseek, "vLLM", kWarning,
     "activation_scheme exists, and is dynamic if weight_block_size exists", activation_scheme,
     has_e4m3_codes},
    {"fp8.block-size", kDeepseek, "all", kError,
     "weight_block_size has two positive entries: rows and columns of a block", block_size,
     has_e4m3_codes},
    {"fp8.weight-quantized", kDeepseek, "all", kError,
     "a weight that the FP8 release quantizes is FP8, or its module is listed as ignored",
     weight_quantized, has_e4m3_codes},
    {"fp8.plain-module", kDeepseek, "all", kError,
     "embedding, head, router, norms, eh_proj and weights_proj are not FP8", native_plain_module,
     has_e4m3_codes, false, kIsAllowable},
    {"fp8.silent-module", kDeepseek, "vLLM", kError,
     "a plain module that vLLM would make FP8 by default is listed as ignored", silent_module,
     has_e4m3_codes},
    {"fp8.head-listed", kDeepseek, "transformers", kWarning,
     "modules_to_not_convert, if it names modules, names the head too", head_listed,
     has_e4m3_codes},
    {"fp8.ue8m0-claim", kDeepseek, "vLLM, SGLang (DeepGEMM)", kWarning,
     "under scale_fmt ue8m0 every scale is a power of two", ue8m0_claim, has_e4m3_codes,
     kReadsValues},
    {"fp8.ue8m0-unsaid", kDeepseek, "vLLM, SGLang (DeepGEMM)", kWarning,
     "if every scale is a power of two, scale_fmt is ue8m0", ue8m0_unsaid, has_e4m3_codes,
     kReadsValues},
    {"fp8.format-words", kDeepseek, "all", kError, "fmt is e4m3 and scale_fmt ue8m0, if they exist",
     format_words},
    {"native.ignored-quantized", kDeepseek, "all", kError,
     "no quantized module is in modules_to_not_convert or ignored_layers", ignored_quantized},
    {"native.experts-said", kDeepseek, "vLLM, SGLang", kError,
     "moe_quant_algo is NVFP4 if and only if the routed experts of DeepSeek-V4 are NVFP4",
     experts_said},
    {"int8-block.config-without-weights", kDeepseek, "all", kError,
     "a checkpoint with a quantization_config of method blockwise_int8 has INT8 weights",
     config_without_weights, has_int8_codes},
    {"int8-block.activation-scheme", kDeepseek, "SGLang", kWarning,
     "activation_scheme exists, and is dynamic if weight_block_size exists", activation_scheme,
     has_int8_codes},
    {"int8-block.block-size", kDeepseek, "all", kError,
     "weight_block_size has two positive entries: rows and columns of a block", block_size,
     has_int8_codes},
    {"int8-block.weight-quantized", kDeepseek, "all", kError,
     "a weight that the release quantizes is INT8, or its module is listed as ignored",
     weight_quantized, has_int8_codes},
    {"int8-block.plain-module", kDeepseek, "all", kError,
     "embedding, head, router, norms, eh_proj and weights_proj are not INT8", native_plain_module,
     has_int8_codes, false, kIsAllowable},
};

}  // namespace

const RuleTable kDeepseekRules = kRules;

}  // namespace ingot::check
