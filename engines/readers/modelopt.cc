#include "formats/dialect/modelopt.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

// ModelOpt's configs as vLLM (layers/quantization/modelopt.py) and SGLang (modelopt_quant.py) read
// them.

namespace ingot::engines {

using formats::Exclusion;
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

/// The parts of the configs that both read.
struct ModeloptFacts {
  std::string algo;
  ExcludedModules excluded;
  const Json* layers = nullptr;  ///< `quantized_layers`, where modules are listed
};

Reading by_algo(const ReaderInput& in, const ModeloptFacts& facts, const BuiltModule& module,
                const std::string& algo) {
  const std::string because = "quant_algo " + algo;
  // SGLang's linears register pre_quant_scale, and its experts none: modelopt_quant.py:1857.
  if (algo == "NVFP4_AWQ") {
    return module.kind == BuiltModule::Kind::kExperts
               ? read_refused(because + ", whose factors of columns its experts do not have")
               : read_as(SchemeId::kNvfp4, because);
  }
  const StorageRow* row = find_storage(in.checkpoint.dialect(), algo);
  if (row == nullptr) return read_as(std::nullopt, because);
  // One class for experts of all kinds of FP8, but for blocks in mixtures: modelopt.py:477, :1859.
  const bool is_by_tensor = module.kind == BuiltModule::Kind::kExperts &&
                            (row->scheme == SchemeId::kFp8Channel ||
                             (row->scheme == SchemeId::kFp8Block && algo == facts.algo));
  return read_as(is_by_tensor ? SchemeId::kFp8Tensor : row->scheme, because);
}

// vLLM's modelopt.py:1717; SGLang has the same without what is said of experts' neighbours.
Reading by_layers(const ReaderInput& in, const ModeloptFacts& facts, const BuiltModule& module) {
  const Json& layers = *facts.layers;
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
      return read_refused(fmt::format("quantized_layers have several of {}", module.name));
    if (!algos.empty()) algo = *algos.begin();
  }
  if (!algo) algo = algo_below(module.name + ".");
  if (!algo && in.is_vllm() && module.kind == BuiltModule::Kind::kExperts)
    algo = algo_below(parent_of(module.name));
  if (!algo) return read_plain("not in quantized_layers");
  const bool is_known = in.is_sglang() ? is_in(kSglangLayerAlgos, *algo) : is_in(kVllmAlgos, *algo);
  return is_known ? by_algo(in, facts, module, *algo) : read_plain("quant_algo " + *algo);
}

Reading by_modelopt(const ReaderInput& in, const ModeloptFacts& facts, const BuiltModule& module,
                    bool is_draft) {
  // SGLang 0.5.23, models/deepseek_nextn.py:75: whatever the config says.
  if (is_draft && facts.algo.find("FP4") != std::string::npos)
    return read_plain("draft models of NVFP4 are plain");
  const bool is_mixed = facts.algo == kModeloptMixed;
  // configs/model_config.py:1855: such a mixture is W4AFP8's to it, which reads no list.
  if (in.is_sglang() && is_mixed && !has_fp4(facts.layers)) {
    if (module.kind == BuiltModule::Kind::kHead) return read_plain("always plain");
    return read_as(std::nullopt, "a mixture without NVFP4");
  }
  switch (facts.excluded.find(module)) {
    case Listed::kTorn:
      return read_refused(fmt::format("excluded modules have some of {}", module.name));
    case Listed::kYes:
      return read_plain("excluded modules");
    case Listed::kNo:
      break;
  }
  return is_mixed ? by_layers(in, facts, module) : by_algo(in, facts, module, facts.algo);
}

Reader read_body(const ReaderInput& in, const Json& source, bool is_file) {
  std::string refusal;
  const Json& body = formats::modelopt_body(source);
  const bool is_flat = &body == &source;
  const std::string given = text_at(body, "quant_algo");
  std::string algo = in.is_vllm() ? upper_case(given) : given;
  const std::string producer = text_at(json_member(source, "producer"), "name");
  const bool has_producer = !is_flat && producer == "modelopt" && !algo.empty();
  const bool has_method =
      is_file ? in.facts.quantization != nullptr : !text_at(source, "quant_method").empty();
  if (in.is_vllm() && has_producer && !(is_file && has_method)) {
    // transformers_utils/model_arch_config_convertor.py:261.
    constexpr std::array<std::string_view, 4> kOfProducer = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN",
                                                             "FP8_PB_WO", "NVFP4"};
    const bool is_read = is_in(kOfProducer, algo) ||
                         (algo == kModeloptMixed && in.row.has(EngineReading::kProducerMixtures));
    if (!is_read) refusal = "quant_algo " + algo + " with a producer";
  } else if (in.is_vllm() && !has_method) {
    return {.of_all = read_plain("no quant_method")};
  }
  const bool is_known = algo == kModeloptMixed ||
                        (in.is_sglang() ? is_in(kSglangAlgos, algo) : is_in(kVllmAlgos, algo));
  if (!is_known) refusal = "quant_algo " + (given.empty() ? std::string("(none)") : given);
  // SGLang puts the algorithm next to a nested body, and then takes the block for a flat one:
  // configs/model_config.py:1740.
  const Json& owner = in.is_sglang() && !is_file ? source : body;
  const bool is_older =
      is_flat && in.row.has(EngineReading::kFlatExcludes) && !owner.contains("ignore");
  const char* key = !is_older && (is_flat || &owner == &source) ? "ignore" : "exclude_modules";
  if (in.is_sglang() && &owner == &source && algo.find("FP4") != std::string::npos) {
    // modelopt_quant.py:1653.
    for (const char* other : {"exclude_modules", "modules_to_not_convert", "ignore"})
      if (owner.contains(other)) key = other;
  }
  const Json& list = json_member(owner, key);
  const bool may_be_null = in.is_sglang() && algo.find("FP4") == std::string::npos;
  if (owner.contains(key) && !list.is_array() && !(may_be_null && list.is_null()))
    refusal = fmt::format("{} is no list", key);
  const Json& layers = json_member(body, "quantized_layers");
  if (in.is_vllm() && algo == kModeloptMixed && (!layers.is_object() || layers.empty()))
    refusal = "no quantized_layers";
  if (!refusal.empty()) return {.of_all = read_refused(std::move(refusal))};
  const auto facts = std::make_shared<const ModeloptFacts>(
      ModeloptFacts{.algo = std::move(algo),
                    .excluded = {strings_at(owner, key), in.engine, !in.built.is_latent()},
                    .layers = layers.is_object() ? &layers : nullptr});
  return {.of = [&in, facts](std::size_t module) {
    const bool is_draft =
        in.is_sglang() && in.has_draft_names && !in.layer(module).draft_name.empty();
    return by_modelopt(in, *facts, in.built_of(module), is_draft);
  }};
}

}  // namespace

// The block in config.json comes before the file (vLLM's transformers_utils/config.py:893), unless
// it lists no layers of several algorithms.
Reader read_modelopt(const ReaderInput& in) {
  const Json& file = in.checkpoint.description();
  const bool has_file = file.is_object() && json_member(file, "quantization").is_object();
  const Json* block = in.facts.quantization;
  const bool is_mixed =
      block != nullptr && upper_case(text_at(*block, "quant_algo")) == kModeloptMixed;
  const bool has_caches = block != nullptr && (block->contains("kv_cache_quant_algo") ||
                                               block->contains("kv_cache_scheme"));
  const bool is_complete =
      !is_mixed || (block->contains("quantized_layers") && (in.is_vllm() || has_caches));
  if (block != nullptr && (is_complete || !has_file)) return read_body(in, *block, false);
  return has_file ? read_body(in, file, true) : Reader();
}

Reader read_modelopt_block(const ReaderInput& in) {
  const Json& file = in.checkpoint.description();
  const bool has_file = file.is_object() && json_member(file, "quantization").is_object();
  if (!has_file && in.facts.quantization == nullptr) return {};
  auto block =
      (has_file ? ModeloptStatement::of_file(file) : ModeloptStatement::of_config(in.block()))
          .block;
  return {.of = [&in, block = std::move(block)](std::size_t module) {
    const std::string& name = in.layer(module).name;
    const Exclusion exclusion = block.exclusion_of(name);
    if (exclusion == Exclusion::kWhole) return read_plain("excluded modules");
    // A module that only other engines exclude has the algorithm here.
    const StorageRow* algo = exclusion == Exclusion::kNone
                                 ? block.algo_of(name)
                                 : find_storage(in.checkpoint.dialect(), block.algo_name());
    return read_as(algo == nullptr ? std::nullopt : std::optional(algo->scheme),
                   "quant_algo " + block.algo_name());
  }};
}

}  // namespace ingot::engines
