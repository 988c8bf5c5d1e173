#include "check/rules/engine_belief.h"

#include <algorithm>
#include <array>

namespace ingot::check {

using formats::Engine;
using formats::Exclusion;

namespace {

constexpr std::string_view kPlain = "plain";
constexpr std::array<std::string_view, 5> kReadable = {"deepseek", "compressed-tensors", "modelopt",
                                                       "modelslim", "mxfp4"};

Belief plain(std::string because) {
  return {std::string(kPlain), std::move(because)};
}

Belief quantized(SchemeId scheme, std::string because) {
  return {std::string(scheme_facts(scheme).name), std::move(because)};
}

}  // namespace

std::string stored_scheme(const LinearModule& module) {
  return std::string(module.is_quantized ? facts_of(*module.tensor).name : kPlain);
}

bool ConfigReader::is_readable(const Dialect& dialect) {
  return is_in(kReadable, dialect.name);
}

ConfigReader::ConfigReader(const Checkpoint& checkpoint, const RuleFacts& facts, Engine engine)
    : checkpoint_(checkpoint), facts_(facts), engine_(engine) {
  const Json* block = facts_.quantization;
  if (checkpoint.dialect().name == "modelopt") {
    // A file beside config.json comes before it.
    const Json& file = json_member(checkpoint.description(), "quantization");
    const bool has_file = checkpoint.description().is_object() && file.is_object();
    const Json* body = has_file ? &file : block;
    if (body == nullptr) return;
    // The block in config.json is flat, unless it has the form of the file.
    const bool is_flat = !has_file && &formats::modelopt_body(*body) == body;
    modelopt_.emplace(formats::modelopt_body(*body),
                      std::array{is_flat ? "ignore" : "exclude_modules"}, &faults_);
  }
}

bool ConfigReader::is_vllm() const {
  return engine_ == Engine::kVllm || engine_ == Engine::kVllmAscend;
}

bool ConfigReader::is_draft(const LinearModule& module) const {
  return engine_ == Engine::kSglang && !module.draft_name.empty();
}

std::string_view ConfigReader::name_of(const LinearModule& module) const {
  if (is_draft(module)) return module.draft_name;
  return is_vllm() && !module.mtp_name.empty() ? module.mtp_name : module.name;
}

Belief ConfigReader::belief(const LinearModule& module) const {
  const std::string_view dialect = checkpoint_.dialect().name;
  if (!module.is_quantizable) return plain("always plain");
  if (facts_.groups) return by_groups(module);
  if (modelopt_) return by_modelopt(module);
  if (dialect == "modelslim") return by_description(module);
  if (facts_.quantization == nullptr) return plain("no quantization_config");
  const bool is_expert =
      module.tensor->rule != nullptr && is_routed_expert(module.tensor->rule->role);
  if (dialect == "mxfp4")
    return is_expert ? by_exemption(module, SchemeId::kMxfp4) : plain("not an expert");
  return by_exemption(module,
                      is_expert && has_fp4_experts() ? SchemeId::kMxfp4 : scheme_of_method());
}

Belief ConfigReader::by_groups(const LinearModule& module) const {
  const std::string_view name = name_of(module);
  if (facts_.groups->is_ignored(name)) return plain("ignore");
  const formats::ConfigGroup* group = facts_.groups->target_of(name);
  if (group == nullptr) return plain("no target matches");
  const std::string because = "config_groups." + group->name;
  if (!group->has_weights) return plain(because);
  if (!group->scheme) return {"unknown scheme", because};
  return quantized(*group->scheme, because);
}

Belief ConfigReader::by_modelopt(const LinearModule& module) const {
  const std::string_view name = is_draft(module) ? module.draft_name : module.name;
  const Exclusion exclusion = modelopt_->exclusion_of(name);
  const bool is_out =
      exclusion == Exclusion::kWhole || (exclusion == Exclusion::kInside && is_vllm());
  if (is_out) return plain("excluded modules");
  // What is excluded for others stands under the algorithm all the same.
  const formats::StorageRow* algo =
      exclusion == Exclusion::kNone ? modelopt_->algo_of(name)
                                    : find_storage(checkpoint_.dialect(), modelopt_->algo_name());
  if (algo == nullptr) return {"unknown scheme", "quant_algo " + modelopt_->algo_name()};
  // SGLang 0.5.23, models/deepseek_nextn.py:75: whatever the config says.
  if (is_draft(module) && find_storage(checkpoint_.dialect(), modelopt_->algo_name()) == algo &&
      algo->scheme == SchemeId::kNvfp4)
    return plain("draft models of NVFP4 are plain");
  return quantized(algo->scheme, "quant_algo " + modelopt_->algo_name());
}

Belief ConfigReader::by_description(const LinearModule& module) const {
  const Json& word = json_member(checkpoint_.description(), module.tensor->name.c_str());
  if (!word.is_string()) return plain("not in the description");
  const std::string& text = word.get_ref<const std::string&>();
  const formats::StorageRow* row = find_storage(checkpoint_.dialect(), text);
  if (row == nullptr) return text == "FLOAT" ? plain(text) : Belief{"unknown scheme", text};
  return quantized(row->scheme, text);
}

// DeepSeek's FP8 says one thing of all layers that engines build quantized.
SchemeId ConfigReader::scheme_of_method() const {
  const Json& block = *facts_.quantization;
  const Json& method = json_member(block, "quant_method");
  if (method.is_string() && method.get_ref<const std::string&>() == "blockwise_int8")
    return SchemeId::kInt8Block;
  return json_member(block, "weight_block_size").is_array() ? SchemeId::kFp8Block
                                                            : SchemeId::kFp8Tensor;
}

// DeepSeek-V4 says so beside the block, V4.1 in it.
bool ConfigReader::has_fp4_experts() const {
  for (const Json* object : {&*checkpoint_.config().raw, facts_.quantization}) {
    if (json_member(*object, "expert_dtype") == "fp4") return true;
  }
  return false;
}

Belief ConfigReader::by_exemption(const LinearModule& module, SchemeId scheme) const {
  const Json& block = *facts_.quantization;
  const char* key = exemption_key(block, engine_ == Engine::kTransformers);
  const std::string_view name = is_draft(module) ? module.draft_name : module.tensor->name;
  if (is_exempt(checkpoint_, name, strings_at(block, key))) return plain(key);
  const Json& method = json_member(block, "quant_method");
  return quantized(scheme, "quant_method " + (method.is_string() ? method.get<std::string>()
                                                                 : std::string("(none)")));
}

}  // namespace ingot::check
