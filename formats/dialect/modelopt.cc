#include "formats/dialect/modelopt.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"
#include "formats/modules/module_patterns.h"

// Exports of NVIDIA's Model Optimizer: docs/formats.md, "Dialects".

namespace ingot::formats {
namespace {

constexpr std::array kNvfp4Parts = {
    PartRow{Part::kWeight, ".weight", DType::kU8, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale", DType::kF8E4M3, PartShape::kGrid},
    PartRow{Part::kGlobal, ".weight_scale_2", DType::kF32, PartShape::kScalar},
    PartRow{Part::kInputScale, ".input_scale", DType::kF32, PartShape::kScalar},
};
constexpr std::array kFp8TensorStaticParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale", DType::kF32, PartShape::kScalar},
    PartRow{Part::kInputScale, ".input_scale", DType::kF32, PartShape::kScalar},
};
constexpr std::array kFp8ChannelParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale", DType::kF32, PartShape::kPerRow},
};
constexpr std::array kFp8BlockParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale", DType::kF32, PartShape::kSpread},
};
// Experts in mixtures, which engines read as DeepSeek's.
constexpr std::array kFp8BlockOfMixtures = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale_inv", DType::kF32, PartShape::kGrid},
};
constexpr std::string_view kNvfp4Choice =
    "static (NVFP4, as TensorRT-LLM and older SGLang load it; give --activation-scales or "
    "--input-scale 1) or weight-only (W4A16_NVFP4, for vLLM and SGLang 0.5.23)";
constexpr std::array kStorage = {
    StorageRow{.scheme = SchemeId::kNvfp4,
               .activations = Activations::kWeightOnly,
               .config_name = "W4A16_NVFP4",
               .parts = without_inputs(kNvfp4Parts),
               .activations_choice = kNvfp4Choice},
    StorageRow{.scheme = SchemeId::kNvfp4,
               .activations = Activations::kStatic,
               .config_name = "NVFP4",
               .parts = kNvfp4Parts,
               .activations_choice = kNvfp4Choice},
    StorageRow{SchemeId::kFp8Tensor, Activations::kStatic, "FP8", kFp8TensorStaticParts},
    StorageRow{SchemeId::kFp8Channel, Activations::kDynamic, "FP8_PER_CHANNEL_PER_TOKEN",
               kFp8ChannelParts},
    StorageRow{SchemeId::kFp8Block, Activations::kDynamic, "FP8_PB_WO", kFp8BlockParts},
    StorageRow{.scheme = SchemeId::kFp8Block,
               .activations = Activations::kDynamic,
               .config_name = "FP8_PB_WO",
               .parts = kFp8BlockOfMixtures,
               .is_kept_only = true},
};

// Its makers wrote `fp8_pb_wo` at first.
std::string algo_name_in(const Json& owner) {
  return upper_case(text_at(owner, "quant_algo"));
}

ModuleList excluded_in(const Json& body, std::span<const char* const> lists,
                       std::vector<std::string>* faults) {
  std::vector<std::string> entries;
  for (const char* key : lists) {
    const Json& list = json_member(body, key);
    const bool is_list =
        list.is_array() &&
        std::all_of(list.begin(), list.end(), [](const Json& e) { return e.is_string(); });
    if (!is_list && !list.is_null()) {
      std::string fault = fmt::format("'quantization_config.{}' is not a list of strings", key);
      if (faults == nullptr)
        throw Error(ErrorCode::kCorrupt, std::move(fault)).in_file("config.json");
      faults->push_back(std::move(fault));
    }
    // Expressions are not of this dialect; an entry that looks like one is only text.
    for (std::string& entry : strings_at(body, key))
      if (!entry.empty() && !entry.starts_with("re:")) entries.push_back(std::move(entry));
  }
  return {entries, PatternSyntax::kGlob};
}

/// The description of the model to write: one algorithm and the modules that it leaves out.
struct Derived {
  const StorageRow* algo = nullptr;
  std::vector<std::string> excluded;
};

Derived derive(const WrittenModel& model, const WrittenGroups& written) {
  const QuantizationGroup& group = written.groups.front();
  Derived derived;
  derived.algo = find_storage(kModeloptDialect, group.scheme, group.activations);
  if (written.groups.size() > 1 || derived.algo == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "dialect modelopt holds one scheme of nvfp4 (weight-only, static), fp8-tensor "
                "(static), fp8-channel and fp8-block (dynamic), not {} with {} activations{}",
                scheme_facts(group.scheme).name, activations_name(group.activations),
                written.groups.size() > 1 ? " together with others" : "");
  }
  derived.excluded =
      module_patterns(written.modules, 0, model.source.num_hidden_layers, PatternSyntax::kGlob);
  // SGLang takes an empty list for a missing one. A norm is no linear layer, so this entry has no
  // effect.
  if (derived.excluded.empty()) derived.excluded.emplace_back("model.norm");
  return derived;
}

/// True if the source's block gives the written form for every module.
bool describes(const Json& block, const WrittenGroups& written,
               std::span<const std::string> unquantized) {
  const ModeloptBlock source(block);
  const bool holds =
      std::all_of(written.modules.begin(), written.modules.end(), [&](const ClassedModule& module) {
        if (module.cls == 0) return true;
        const StorageRow* algo = source.algo_of(module.name);
        const QuantizationGroup& group = written.groups[module.cls - 1];
        return algo != nullptr && algo->scheme == group.scheme &&
               algo->activations == group.activations;
      });
  return holds &&
         std::all_of(unquantized.begin(), unquantized.end(),
                     [&](const std::string& module) { return source.algo_of(module) == nullptr; });
}

bool is_kept(const Json* block, const WrittenModel& model, const WrittenGroups& written) {
  return block != nullptr &&
         describes(*block, written, silent_modules(model.tensors, kModeloptDialect));
}

// vLLM knows the files of this dialect by the producer's name.
Json producer() {
  return {{"name", "modelopt"}, {"version", "0.27.0"}};
}

Json numbers(std::uint32_t bits, bool is_dynamic, std::uint64_t group_size,
             std::string_view strategy) {
  Json args = {{"dynamic", is_dynamic}, {"num_bits", bits}, {"type", "float"}};
  if (group_size != 0) args["group_size"] = group_size;
  if (!strategy.empty()) args["strategy"] = strategy;
  return args;
}

// 0: it has none.
std::uint64_t group_size(const StorageRow& algo) {
  return scheme_facts(algo.scheme).group_cols;
}

Json config_group(const StorageRow& algo) {
  const std::uint32_t bits = scheme_facts(algo.scheme).code_bits;
  const bool is_by_row = algo.scheme == SchemeId::kFp8Channel;
  Json group = Json::object();
  // ModelOpt describes only the weights of FP8 blocks, whatever engines do with activations.
  if (algo.activations != Activations::kWeightOnly && algo.scheme != SchemeId::kFp8Block) {
    group["input_activations"] = numbers(bits, algo.activations == Activations::kDynamic,
                                         group_size(algo), is_by_row ? "token" : "");
  }
  group["weights"] = numbers(bits, false, group_size(algo), is_by_row ? "channel" : "");
  group["targets"] = {"Linear"};
  return group;
}

Json quantization_config(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const WrittenGroups written = written_groups(model);
  const Json* block = source_block(model.source, kModeloptDialect);
  if (is_kept(block, model, written)) return *block;
  const Derived derived = derive(model, written);
  Json result = {{"config_groups", {{"group_0", config_group(*derived.algo)}}},
                 {"ignore", derived.excluded},
                 {"quant_algo", derived.algo->config_name}};
  if (group_size(*derived.algo) != 0) result["group_size"] = group_size(*derived.algo);
  result["producer"] = producer();
  result["quant_method"] = "modelopt";
  return result;
}

Json description(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const WrittenGroups written = written_groups(model);
  if (is_kept(model.description, model, written)) return *model.description;
  const Derived derived = derive(model, written);
  Json quantization = {{"quant_algo", derived.algo->config_name}, {"kv_cache_quant_algo", nullptr}};
  if (group_size(*derived.algo) != 0) quantization["group_size"] = group_size(*derived.algo);
  quantization["exclude_modules"] = derived.excluded;
  return {{"producer", producer()}, {"quantization", std::move(quantization)}};
}

}  // namespace

const Dialect kModeloptDialect = {
    .name = "modelopt",
    .summary = "quant_method modelopt: X.weight, X.weight_scale, X.weight_scale_2, which multiply",
    .storage = kStorage,
    .heads = Heads::kBySilence,
    .description_file = "hf_quant_config.json",
    .quantization_config = quantization_config,
    .description = description};

const Json& modelopt_body(const Json& block) {
  const Json& nested = json_member(block, "quantization");
  return nested.is_object() ? nested : block;
}

ModeloptBlock::ModeloptBlock(const Json& block, std::span<const char* const> lists,
                             std::vector<std::string>* faults)
    : algo_name_(algo_name_in(modelopt_body(block))),
      excluded_(excluded_in(modelopt_body(block), lists, faults)) {
  const Json& layers = json_member(modelopt_body(block), "quantized_layers");
  if (!layers.is_object()) return;
  layers_.emplace();
  for (const auto& [module, layer] : layers.items())
    layers_->emplace(module, find_storage(kModeloptDialect, algo_name_in(layer)));
}

std::optional<const StorageRow*> ModeloptBlock::listed(std::string_view module) const {
  while (true) {
    if (const auto layer = layers_->find(module); layer != layers_->end()) return layer->second;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    module = module.substr(0, dot);
  }
}

const StorageRow* ModeloptBlock::algo_of(std::string_view module) const {
  if (excluded_.covers_for_any(module)) return nullptr;
  return layers_ ? listed(module).value_or(nullptr) : find_storage(kModeloptDialect, algo_name_);
}

Exclusion ModeloptBlock::exclusion_of(std::string_view module) const {
  if (algo_name_ == kModeloptMixed && layers_)
    return listed(module) ? Exclusion::kNone : Exclusion::kWhole;
  if (excluded_.covers_for_all(module)) return Exclusion::kWhole;
  return excluded_.covers_for_any(module) ? Exclusion::kInside : Exclusion::kNone;
}

}  // namespace ingot::formats
