#include <algorithm>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

// DeepSeek's FP8 config as all engines but transformers read it. It says one thing of all layers
// that they build quantized, but for experts in FP4 and for a list of plain modules.

namespace ingot::engines {

using formats::json_member;
using formats::strings_at;
using formats::text_at;

namespace {

// vllm/models/deepseek_v4/quant_config.py knows one word for all; SGLang leaves draft models out.
SchemeId scheme_of_fp4_experts(const ReaderInput& in, const LinearModule& module) {
  const auto& layer = module.tensor->layer;
  const bool is_draft = layer && *layer >= in.checkpoint.config().num_hidden_layers;
  return text_at(in.block(), "moe_quant_algo") == "NVFP4" && !(in.is_sglang() && is_draft)
             ? SchemeId::kNvfp4
             : SchemeId::kMxfp4;
}

Listed exempted(const ReaderInput& in, const BuiltModule& module,
                std::span<const std::string> entries) {
  // A text model inside of another model may be listed by the other model's names.
  for (std::size_t i = 0; i < in.aliases(module.name).size(); ++i) {
    BuiltModule called = module;
    called.name = in.aliases(module.name)[i];
    for (std::string& member : called.members) member = in.aliases(member)[i];
    // bailing_moe_v3.py of vLLM.
    if (in.is_vllm() && formats::lists_ends_of_names(in.block()) &&
        formats::has_end_of(entries, called.name))
      return Listed::kYes;
    const Listed listed =
        in.is_sglang() ? listed_in_sglang(called, entries) : listed_in_vllm(called, entries);
    if (listed != Listed::kNo) return listed;
  }
  return Listed::kNo;
}

/// Why vLLM or SGLang raises an error, or empty: fp8.py:106 of vLLM, :220 of SGLang.
std::string activations_refusal(const Json& block) {
  const std::string scheme = text_at(block, "activation_scheme");
  if (scheme != "static" && scheme != "dynamic")
    return "activation_scheme " + (scheme.empty() ? std::string("(none)") : scheme);
  const bool has_block = !json_member(block, "weight_block_size").is_null();
  return has_block && scheme != "dynamic" ? "activation_scheme static with weight_block_size" : "";
}

}  // namespace

// DeepSeek-V4 says so next to the block, V4.1 in it.
bool has_fp4_experts(const ReaderInput& in) {
  const formats::ModelConfig& config = in.checkpoint.config();
  for (const Json* object : {&*config.raw, &in.block()}) {
    const Json& said = json_member(*object, "expert_dtype");
    if (!said.is_null()) return text_at(*object, "expert_dtype") == "fp4";
  }
  // vLLM's bailing_moe_v3.py:252 and fp8.py:199; SGLang's model_config.py:728, 735.
  const std::string_view family = in.checkpoint.family().name;
  const auto says = [&](const char* key) {
    return text_at(in.block(), key) == formats::kMxfp4Word;
  };
  if (in.is_sglang())
    return says(formats::kExpertMethod) ||
           (says(formats::kStoreDtype) && family.starts_with("mimo"));
  // vllm/models/deepseek_v4/quant_config.py takes them for that where nothing is said.
  return in.is_vllm() && ((says(formats::kExpertMethod) && family == "bailing_hybrid") ||
                          says(formats::kStoreDtype) || config.model_type == "deepseek_v4");
}

Reader read_fp8(const ReaderInput& in) {
  if (in.facts.quantization == nullptr) return {};
  const bool is_judged = in.is_vllm() || in.is_sglang();
  if (is_judged && text_at(in.block(), "quant_method").empty())
    return {.of_all =
                in.is_vllm() ? read_plain("no quant_method") : read_refused("no quant_method")};
  if (std::string refusal = activations_refusal(in.block()); is_judged && !refusal.empty())
    return {.of_all = read_refused(std::move(refusal))};
  const char* list = exemption_key(in.block(), in.engine);
  std::vector<std::string> entries;
  if (in.engine != Engine::kDeepseek) entries = strings_at(in.block(), list);
  if (in.is_sglang()) {
    // It looks for each with and without `model.` before it: fp8.py:318.
    constexpr std::string_view kModel = "model.";
    for (std::size_t i = 0, n = entries.size(); i < n; ++i)
      entries.push_back(entries[i].starts_with(kModel) ? entries[i].substr(kModel.size())
                                                       : std::string(kModel) + entries[i]);
  }
  std::ranges::sort(entries);
  std::vector<Listed> listed;  // answers by the number of the built module, of vLLM and SGLang
  if (is_judged) {
    for (const BuiltModule& module : in.built.modules())
      listed.push_back(exempted(in, module, entries));
  }
  const SchemeId scheme =
      text_at(in.block(), "quant_method") == "blockwise_int8"   ? SchemeId::kInt8Block
      : json_member(in.block(), "weight_block_size").is_array() ? SchemeId::kFp8Block
                                                                : SchemeId::kFp8Tensor;
  return {.of = [=, &in, listed = std::move(listed), has_fp4 = has_fp4_experts(in),
                 because = in.by_method()](std::size_t module) {
    const LinearModule& layer = in.layer(module);
    const Listed is_left_out =
        is_judged ? listed[in.built.module_of(module)]
        : formats::is_exempt(in.checkpoint.config(), layer.tensor->name, entries) ? Listed::kYes
                                                                                  : Listed::kNo;
    if (is_left_out == Listed::kTorn) return read_partly_listed(in.built_of(module), list);
    if (is_left_out == Listed::kYes) return read_plain(list);
    return read_as(has_fp4 && is_routed_expert(role_of(*layer.tensor))
                       ? scheme_of_fp4_experts(in, layer)
                       : scheme,
                   because);
  }};
}

}  // namespace ingot::engines
