#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "engines/readers/config_reader.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

// ModelOpt's configs as vLLM (layers/quantization/modelopt.py) and SGLang (modelopt_quant.py) read
// them.

namespace ingot::engines {

using formats::json_member;
using formats::kModeloptMixed;
using formats::ModeloptStatement;
using formats::StorageRow;
using formats::strings_at;
using formats::text_at;

namespace {

// The algorithms that they know; those of the layers of a mixture too.
constexpr std::array<std::string_view, 6> kVllmAlgos = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8"};
constexpr std::array<std::string_view, 5> kSglangAlgos = {"FP8", "NVFP4", "NVFP4_AWQ",
                                                          "W4A16_NVFP4", "MXFP8"};
constexpr std::array<std::string_view, 6> kSglangLayerAlgos = {
    "FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "NVFP4", "W4A16_NVFP4", "MXFP8"};

bool has_fp4(const Json* layers) {
  return layers != nullptr && std::ranges::any_of(*layers, [](const Json& layer) {
           return upper_case(text_at(layer, "quant_algo")).ends_with("NVFP4");
         });
}

}  // namespace

// The block in config.json comes before the file (vLLM's transformers_utils/config.py:893), unless
// it lists no layers of several algorithms.
void ConfigReader::read_modelopt() {
  const Json& file = checkpoint_.description();
  const bool has_file = file.is_object() && json_member(file, "quantization").is_object();
  const Json* block = facts_.quantization;
  if (!is_vllm(engine_) && !is_sglang()) {
    if (has_file || block != nullptr)
      block_ = (has_file ? ModeloptStatement::of_file(file) : ModeloptStatement::of_config(*block))
                   .block;
    return;
  }
  const bool is_mixed =
      block != nullptr && upper_case(text_at(*block, "quant_algo")) == kModeloptMixed;
  const bool has_caches = block != nullptr && (block->contains("kv_cache_quant_algo") ||
                                               block->contains("kv_cache_scheme"));
  const bool is_complete =
      !is_mixed || (block->contains("quantized_layers") && (is_vllm(engine_) || has_caches));
  if (block != nullptr && (is_complete || !has_file)) {
    read_body(*block, false);
  } else if (has_file) {
    read_body(file, true);
  }
}

void ConfigReader::read_body(const Json& source, bool is_file) {
  const Json& body = formats::modelopt_body(source);
  const bool is_flat = &body == &source;
  const std::string given = text_at(body, "quant_algo");
  std::string algo = is_vllm(engine_) ? upper_case(given) : given;
  const std::string producer = text_at(json_member(source, "producer"), "name");
  const bool has_producer = !is_flat && producer == "modelopt" && !algo.empty();
  const bool has_method =
      is_file ? facts_.quantization != nullptr : !text_at(source, "quant_method").empty();
  if (is_vllm(engine_) && has_producer && !(is_file && has_method)) {
    // transformers_utils/model_arch_config_convertor.py:270.
    constexpr std::array<std::string_view, 4> kOfProducer = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN",
                                                             "FP8_PB_WO", "NVFP4"};
    if (!is_in(kOfProducer, algo)) refusal_ = "quant_algo " + algo + " with a producer";
  } else if (is_vllm(engine_) && !has_method) {
    silence_ = "no quant_method";
    return;
  }
  const bool is_known =
      algo == kModeloptMixed || (is_sglang() ? is_in(kSglangAlgos, algo) : is_in(kVllmAlgos, algo));
  if (!is_known) refusal_ = "quant_algo " + (given.empty() ? std::string("(none)") : given);
  // SGLang puts the algorithm next to a nested body, and then takes the block for a flat one:
  // configs/model_config.py:1740.
  const Json& owner = is_sglang() && !is_file ? source : body;
  const char* key = is_flat || &owner == &source ? "ignore" : "exclude_modules";
  if (is_sglang() && &owner == &source && algo.find("FP4") != std::string::npos) {
    // modelopt_quant.py:1653.
    for (const char* other : {"exclude_modules", "modules_to_not_convert", "ignore"})
      if (owner.contains(other)) key = other;
  }
  const Json& list = json_member(owner, key);
  const bool may_be_null = is_sglang() && algo.find("FP4") == std::string::npos;
  if (owner.contains(key) && !list.is_array() && !(may_be_null && list.is_null()))
    refusal_ = fmt::format("{} is no list", key);
  const Json& layers = json_member(body, "quantized_layers");
  if (is_vllm(engine_) && algo == kModeloptMixed && (!layers.is_object() || layers.empty()))
    refusal_ = "no quantized_layers";
  modelopt_ = ModeloptFacts();
  modelopt_->algo = std::move(algo);
  modelopt_->excluded.emplace(strings_at(owner, key), engine_, !built_.is_latent());
  if (layers.is_object()) modelopt_->layers = &layers;
}

Belief ConfigReader::by_modelopt(const BuiltModule& module, bool is_draft) const {
  // SGLang 0.5.23, models/deepseek_nextn.py:75: whatever the config says.
  if (is_draft && modelopt_->algo.find("FP4") != std::string::npos)
    return {"plain", "draft models of NVFP4 are plain"};
  const bool is_mixed = modelopt_->algo == kModeloptMixed;
  // configs/model_config.py:1855: such a mixture is W4AFP8's to it, which reads no list.
  if (is_sglang() && is_mixed && !has_fp4(modelopt_->layers)) {
    if (module.kind == BuiltModule::Kind::kHead) return {"plain", "always plain"};
    return {"unknown scheme", "a mixture without NVFP4"};
  }
  switch (modelopt_->excluded->find(module)) {
    case Listed::kTorn:
      return {"refused", fmt::format("excluded modules have some of {}", module.name)};
    case Listed::kYes:
      return {"plain", "excluded modules"};
    case Listed::kNo:
      break;
  }
  return is_mixed ? by_layers(module) : by_algo(module, modelopt_->algo);
}

Belief ConfigReader::by_algo(const BuiltModule& module, const std::string& algo) const {
  const std::string because = "quant_algo " + algo;
  const StorageRow* row = find_storage(checkpoint_.dialect(), algo);
  if (row == nullptr) return {"unknown scheme", because};
  // One class for experts of all kinds of FP8, but for blocks in mixtures: modelopt.py:477, :1859.
  const bool is_by_tensor = module.kind == BuiltModule::Kind::kExperts &&
                            (row->scheme == SchemeId::kFp8Channel ||
                             (row->scheme == SchemeId::kFp8Block && algo == modelopt_->algo));
  const SchemeId scheme = is_by_tensor ? SchemeId::kFp8Tensor : row->scheme;
  return {std::string(scheme_facts(scheme).name), because};
}

// vLLM's modelopt.py:1717; SGLang has the same without what is said of experts' neighbours.
Belief ConfigReader::by_layers(const BuiltModule& module) const {
  const Json& layers = *modelopt_->layers;
  const auto algo_at = [&](std::string_view name) -> std::optional<std::string> {
    const auto layer = layers.find(std::string(name));
    if (layer == layers.end()) return std::nullopt;
    return upper_case(text_at(*layer, "quant_algo"));
  };
  const auto algo_below = [&](std::string_view prefix) -> std::optional<std::string> {
    for (const auto& [name, layer] : layers.items())
      if (name.starts_with(prefix)) return upper_case(text_at(layer, "quant_algo"));
    return std::nullopt;
  };
  std::optional<std::string> algo = algo_at(module.name);
  if (!algo && module.has_known_members) {
    std::set<std::string> algos;
    for (const std::string& member : module.members)
      if (const auto own = algo_at(member)) algos.insert(*own);
    if (algos.size() > 1)
      return {"refused", fmt::format("quantized_layers have several of {}", module.name)};
    if (!algos.empty()) algo = *algos.begin();
  }
  if (!algo) algo = algo_below(module.name + ".");
  if (!algo && is_vllm(engine_) && module.kind == BuiltModule::Kind::kExperts)
    algo = algo_below(parent_of(module.name));
  if (!algo) return {"plain", "not in quantized_layers"};
  const bool is_known = is_sglang() ? is_in(kSglangLayerAlgos, *algo) : is_in(kVllmAlgos, *algo);
  return is_known ? by_algo(module, *algo) : Belief{"plain", "quant_algo " + *algo};
}

}  // namespace ingot::engines
