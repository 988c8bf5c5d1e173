#include <cmath>

#include "check/rules/rule_input.h"
#include "formats/container/float8.h"
#include "formats/container/other_float8.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/storage/block_scales.h"

// DeepSeek's own config says little: which modules are quantized follows from the model's code. So
// FP8 and INT8 under it make the same tests; the schemes of a row say which of the two is meant.

namespace ingot::check {

namespace {

bool is_int8(const RuleInput& input) {
  return input.is_about(SchemeId::kInt8Block);
}

std::string_view word(const RuleInput& input) {
  return is_int8(input) ? "INT8" : "FP8";
}

bool is_code(const RuleInput& input, DType dtype) {
  if (is_int8(input)) return dtype == DType::kI8;
  // No row is about weights in schemes that are only read.
  return dtype == DType::kF8E4M3 ||
         (formats::kOtherFloat8.has(dtype) && !may_hide_codes(input.checkpoint));
}

bool has_codes(const RuleInput& input) {
  return std::ranges::any_of(input.checkpoint.stored(), [&](const StoredTensor& tensor) {
    return is_code(input, tensor.dtype);
  });
}

/// True if the config promises weights of the row's kind.
bool claims(const RuleInput& input) {
  const std::string_view method = is_int8(input) ? "blockwise_int8" : "fp8";
  return input.said() != nullptr && input.said()->quant_method.find(method) != std::string::npos;
}

void block_present(const RuleInput& input) {
  // Without a config at all the structure has said so.
  if (input.config().raw->is_object() && input.said() == nullptr && has_codes(input))
    input.report_config(kNotFound,
                        "has no quantization_config, but there are FP8 weights (copy it from the "
                        "release, or ingot repair makes one)");
}

void block_without_weights(const RuleInput& input) {
  if (input.checkpoint.stored().empty() || !claims(input) || has_codes(input) ||
      may_hide_codes(input.checkpoint))
    return;
  // The block speaks of experts in FP4 too.
  if (formats::is_native(input.dialect(), input.checkpoint.family()) &&
      std::ranges::any_of(input.weights(), [](const auto& tensor) { return is_quantized(tensor); }))
    return;
  input.report_config(kMismatch,
                      "promises {0} weights, but no weight is {0} (remove quantization_config)",
                      word(input));
}

void activation_scheme(const RuleInput& input) {
  if (!claims(input)) return;
  const auto has_key = [&](const char* key) { return !json_member(input.block(), key).is_null(); };
  const std::string& scheme = input.said()->activation_scheme;
  if (!has_key("activation_scheme")) {
    input.report_config(kNotFound, "quantization_config has no activation_scheme (\"dynamic\")");
  } else if (scheme != "dynamic" && has_key("weight_block_size")) {
    input.report_config(kUnsupported, "activation_scheme is '{}', block scales need 'dynamic'",
                        scheme);
  }
}

// Both servers take the least float for the scale then: vLLM's fp8.py, SGLang's fp8.py:712.
void promised_input_scale(const RuleInput& input, const LogicalTensor& tensor) {
  if (input.said() == nullptr || input.said()->activation_scheme != "static" ||
      tensor.encoding.scheme != SchemeId::kFp8Tensor ||
      input.part_of(tensor, Part::kInputScale) != nullptr)
    return;
  input.report_kind(tensor, kMissingTensor,
                    "has no input scale, but activation_scheme is static (put dynamic)");
}

void block_size(const RuleInput& input) {
  if (!claims(input) || !has_codes(input)) return;
  const Json& size = json_member(input.block(), "weight_block_size");
  const auto has = [&](SchemeId scheme) {
    return std::ranges::any_of(input.weights(), [&](const LogicalTensor& tensor) {
      return tensor.encoding.scheme == scheme;
    });
  };
  if (has(SchemeId::kFp8Tensor) && !has(SchemeId::kFp8Block)) {
    if (!size.is_null())
      input.report_config(kMismatch,
                          "quantization_config has a weight_block_size, but no weight has a scale "
                          "per block (remove it)");
    return;
  }
  const auto is_positive = [](const Json& n) { return n.is_number_unsigned() && n != 0; };
  if (!size.is_array() || size.size() != 2 || !std::ranges::all_of(size, is_positive))
    input.report_config(
        kCorrupt,
        "quantization_config has no weight_block_size of two positive numbers ([128, 128])");
}

void weight_quantized(const RuleInput& input) {
  if (!claims(input) || !has_codes(input)) return;
  std::vector<std::string> ignored = strings_at(input.block(), formats::kIgnoredLayers);
  std::ranges::move(strings_at(input.block(), formats::kModulesToNotConvert),
                    std::back_inserter(ignored));
  std::ranges::sort(ignored);
  for (const LogicalTensor& tensor : input.weights()) {
    if (tensor.rule == nullptr || !tensor.rule->fp8_by_default) continue;
    const DType dtype = input.codes_of(tensor).dtype;
    if (!is_coded(tensor.encoding.scheme) && !is_code(input, dtype) &&
        !formats::is_exempt(input.config(), tensor.name, ignored))
      input.report_kind(tensor, kDtypeMismatch,
                        "is {} where loaders expect {} and a scale (list its module in "
                        "modules_to_not_convert)",
                        dtype_name(dtype), word(input));
  }
}

void ue8m0_claim(const RuleInput& input) {
  if (input.said() == nullptr || input.said()->scale_fmt != "ue8m0") return;
  // Zero and infinity are the business of fp8.scale-values.
  const auto is_odd = [](float scale) {
    return scale > 0 && std::isfinite(scale) && !formats::is_e8m0_value(scale);
  };
  input.report_odd(
      input.odd_scales(input.parts_of_weights({Part::kScale}), is_odd), kMismatch,
      [](const OddValues& odd) {
        return fmt::format(
            "{} of {} scales are not powers of two, the first is {} at element {}, but config.json "
            "says scale_fmt ue8m0 (remove it)",
            odd.n, odd.total, odd.value, odd.first);
      });
}

void ue8m0_unsaid(const RuleInput& input) {
  if (input.said() == nullptr || !input.said()->scale_fmt.empty()) return;
  const std::vector<const StoredTensor*> scales = input.parts_of_weights({Part::kScale});
  const bool can_read =
      std::ranges::all_of(scales, [&](const auto* scale) { return input.may_read(*scale); });
  if (can_read && all_scales_are_powers_of_two(input.checkpoint))
    input.report_config(kNotFound,
                        "every scale is a power of two, but quantization_config has no scale_fmt "
                        "\"ue8m0\": engines then quantize activations under other scales");
}

void format_words(const RuleInput& input) {
  if (input.said() == nullptr || input.said()->quant_method != "fp8") return;
  const auto require = [&](std::string_view key, std::string_view only, std::string_view or_this) {
    const Json& value = json_member(input.block(), key);
    if (!value.is_null() && value != only && value != or_this)
      input.report_config(kMismatch, "quantization_config.{} is {}, loaders know only \"{}\"", key,
                          config_text(value), only);
  };
  require("fmt", "e4m3", "float8_e4m3fn");
  require("scale_fmt", "ue8m0", "ue8m0");
}

void experts_said(const RuleInput& input, const LogicalTensor& tensor) {
  if (input.block().is_null() || !formats::is_native(input.dialect(), input.checkpoint.family()))
    return;
  const bool is_said = text_at(input.block(), "moe_quant_algo") == "NVFP4";
  const bool is_draft = tensor.layer && *tensor.layer >= input.config().num_hidden_layers;
  if (is_routed_expert(role_of(tensor)) && !is_draft && is_quantized(tensor) &&
      (tensor.encoding.scheme == SchemeId::kNvfp4) != is_said)
    input.report_kind(
        tensor, kMismatch,
        "is {}, but quantization_config says {}moe_quant_algo NVFP4 (ingot repair makes the block "
        "again)",
        facts_of(tensor).name, is_said ? "" : "no ");
}

// Engines that take the word build experts in MXFP4 by it: readers/deepseek.cc.
void experts_as_said(const RuleInput& input, const LogicalTensor& tensor) {
  if (formats::says_mxfp4_experts(input.config()) && is_routed_expert(role_of(tensor)) &&
      is_quantized(tensor) && tensor.encoding.scheme != SchemeId::kMxfp4)
    input.report_kind(tensor, kMismatch,
                      "is {}, but quantization_config says by {} or {} that routed experts are "
                      "mxfp4 (ingot repair removes the word)",
                      facts_of(tensor).name, formats::kExpertMethod, formats::kStoreDtype);
}

constexpr std::string_view kDeepseek = "deepseek";

constexpr LoaderRule kDeepseekRows[] = {
    {"fp8.config-present", kDeepseek, "all", kError,
     "a checkpoint with FP8 weights has a quantization_config", block_present, has_e4m3_codes},
    {"fp8.config-without-weights", kDeepseek, "all", kError,
     "a checkpoint with a quantization_config of method fp8 has FP8 weights", block_without_weights,
     has_e4m3_codes},
    {"fp8.activation-scheme", kDeepseek, "vLLM, SGLang", kWarning,
     "activation_scheme exists, and is dynamic if weight_block_size exists", activation_scheme,
     has_e4m3_codes},
    {"fp8.static-input-scale", kDeepseek, "all", kError,
     "under activation_scheme static every weight has an input scale", promised_input_scale,
     has_e4m3_codes},
    {"fp8.experts-as-said", kDeepseek, "vLLM, SGLang", kWarning,
     "routed experts are mxfp4 if routed_experts_quant_method or store_dtype says so",
     experts_as_said},
    {"fp8.block-size", kDeepseek, "all", kError,
     "weight_block_size has two positive entries: rows and columns of a block", block_size,
     has_e4m3_codes},
    {"fp8.weight-quantized", kDeepseek, "all", kError,
     "a weight that the FP8 release quantizes is FP8, or its module is listed as ignored",
     weight_quantized, has_e4m3_codes},
    {"fp8.plain-module", kDeepseek, "all", kError,
     "embedding, head, router, norms, eh_proj and weights_proj are not FP8", plain_module,
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
     block_without_weights, has_int8_codes},
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
     "embedding, head, router, norms, eh_proj and weights_proj are not INT8", plain_module,
     has_int8_codes, false, kIsAllowable},
};

}  // namespace

const RuleTable kDeepseekRules = kDeepseekRows;

}  // namespace ingot::check
