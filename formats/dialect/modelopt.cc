#include "formats/dialect/modelopt.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/modules/module_patterns.h"
#include "formats/text/spelling.h"

// Exports of NVIDIA's Model Optimizer: docs/formats.md, "Dialects".

namespace ingot::formats {
namespace {

using enum DType;
using enum PartShape;

constexpr std::array kPcPtParts = {codes_part(kF8E4M3), scale_part(kF32, kPerRow)};
constexpr std::array kPbWoParts = {codes_part(kF8E4M3), scale_part(kF32, kSpread)};
const Json kNothing = Json::object();
constexpr std::string_view kNvfp4Choice =
    "static (NVFP4, as TensorRT-LLM and older SGLang load it; give --activation-scales or "
    "--input-scale 1) or weight-only (W4A16_NVFP4, for vLLM and SGLang 0.5.23)";
constexpr std::array kModeloptStorage = {
    StorageRow{SchemeId::kNvfp4, Activations::kWeightOnly, "W4A16_NVFP4",
               without_inputs(kNvidiaNvfp4Parts), false, kNvfp4Choice},
    StorageRow{SchemeId::kNvfp4, Activations::kStatic, "NVFP4", kNvidiaNvfp4Parts, false,
               kNvfp4Choice},
    StorageRow{SchemeId::kFp8Tensor, Activations::kStatic, "FP8", kScalarFp8Parts},
    StorageRow{SchemeId::kFp8Channel, Activations::kDynamic, "FP8_PER_CHANNEL_PER_TOKEN",
               kPcPtParts},
    StorageRow{SchemeId::kFp8Block, Activations::kDynamic, "FP8_PB_WO", kPbWoParts},
    StorageRow{SchemeId::kMxfp8, Activations::kDynamic, "MXFP8", kMxfp8Parts},
    // Experts in mixtures.
    kept_only({SchemeId::kFp8Block, Activations::kDynamic, "FP8_PB_WO", kReleasedFp8Parts}),
};

// Weights whose columns have factors, X.pre_quant_scale: decoded, and never written.
constexpr std::array kDecodedStorage = {
    kept_only({SchemeId::kNvfp4, Activations::kStatic, "NVFP4_AWQ", kNvidiaNvfp4Parts}),
    kept_only({SchemeId::kInt4Group, Activations::kWeightOnly, "W4A16_AWQ",
               without_inputs(kNvidiaNvfp4Parts)}),
};

/// The row of an algorithm that is read; null: there is none.
const StorageRow* find_algo(std::string_view name) {
  const auto* const row = std::ranges::find(kDecodedStorage, name, &StorageRow::config_name);
  return row == kDecodedStorage.end() ? find_storage(kModeloptDialect, name) : row;
}

constexpr std::string_view kModelopt = "modelopt";

// Returns the algorithm in capitals, since ModelOpt wrote `fp8_pb_wo` at first.
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

/// The description of the model to write: an algorithm, or several and the modules of each, and the
/// modules that are left out.
struct Derived {
  std::vector<const StorageRow*> algos;
  /// Number of each module's algorithm, where there are several.
  std::map<std::string, std::size_t> layers;
  std::vector<std::string> excluded;

  [[nodiscard]] bool is_mixed() const { return algos.size() > 1; }
  [[nodiscard]] std::string_view algo_name() const {
    return is_mixed() ? kModeloptMixed : algos.front()->config_name;
  }
};

/// The modules of each class of a mixture. Experts of a layer are one module to engines, and are
/// listed as one.
std::map<std::string, std::size_t> listed_modules(const WrittenGroups& written) {
  std::map<std::string, std::size_t> layers;
  std::map<std::string_view, std::uint32_t> of_experts;
  for (const ClassedModule& module : written.modules) {
    const std::string_view experts = experts_of(module.name);
    if (experts.empty()) {
      if (module.cls != 0) layers.emplace(module.name, module.cls - 1);
      continue;
    }
    const auto [known, is_new] = of_experts.try_emplace(experts, module.cls);
    if (known->second != module.cls) {
      throw Error(ErrorCode::kUnsupported,
                  "is in another form than other experts of its layer, and dialect modelopt lists "
                  "experts by the layer (give them one with --rule role:expert-gate,...)")
          .in_tensor(module.name);
    }
    if (is_new && module.cls != 0) layers.emplace(experts, module.cls - 1);
  }
  return layers;
}

Derived derive(const WrittenModel& model, const WrittenGroups& written) {
  Derived derived;
  for (const QuantizationGroup& group : written.groups) {
    derived.algos.push_back(find_storage(kModeloptDialect, group.scheme, group.activations));
    if (derived.algos.back() != nullptr) continue;
    throw Error(ErrorCode::kUnsupported,
                "dialect modelopt holds nvfp4 (weight-only, static), fp8-tensor (static), "
                "fp8-channel, fp8-block and mxfp8 (dynamic), not {} with {} activations",
                scheme_facts(group.scheme).name, activations_name(group.activations));
  }
  if (derived.is_mixed()) derived.layers = listed_modules(written);
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
        return algo != nullptr && !algo->is_read_only && algo->scheme == group.scheme &&
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

Json numbers(std::uint32_t bits, bool is_dynamic, std::uint64_t group_size,
             std::string_view strategy) {
  Json args = {{"dynamic", is_dynamic}, {"num_bits", bits}, {"type", "float"}};
  if (group_size != 0) args["group_size"] = group_size;
  if (!strategy.empty()) args["strategy"] = strategy;
  return args;
}

Json algo_group(const StorageRow& algo, const std::vector<std::string>& targets) {
  const std::uint32_t bits = scheme_facts(algo.scheme).code_bits;
  const bool is_by_row = algo.scheme == SchemeId::kFp8Channel;
  Json group = Json::object();
  // ModelOpt describes only the weights of FP8 blocks, whatever engines do with activations.
  if (algo.activations != Activations::kWeightOnly && algo.scheme != SchemeId::kFp8Block) {
    group["input_activations"] = numbers(bits, algo.activations == Activations::kDynamic,
                                         modelopt_group_size(algo), is_by_row ? "token" : "");
  }
  group["weights"] = numbers(bits, false, modelopt_group_size(algo), is_by_row ? "channel" : "");
  group["targets"] = targets;
  return group;
}

/// `config_groups`: the modules of each algorithm.
Json config_groups(const Derived& derived) {
  if (!derived.is_mixed()) return {{"group_0", algo_group(*derived.algos.front(), {"Linear"})}};
  Json groups = Json::object();
  for (std::size_t i = 0; i < derived.algos.size(); ++i) {
    std::vector<std::string> targets;
    for (const auto& [module, algo] : derived.layers)
      if (algo == i) targets.push_back(module);
    groups[fmt::format("group_{}", i)] = algo_group(*derived.algos[i], targets);
  }
  return groups;
}

/// Says the group of the one algorithm, or the algorithm of each module, in `owner`.
void state_algos(const Derived& derived, Json& owner) {
  if (!derived.is_mixed()) {
    if (const std::uint64_t size = modelopt_group_size(*derived.algos.front()); size != 0)
      owner["group_size"] = size;
    return;
  }
  Json layers = Json::object();
  auto& members = layers.get_ref<Json::object_t&>();
  for (const auto& [module, algo] : derived.layers) {
    const StorageRow& row = *derived.algos[algo];
    Json layer = {{"quant_algo", row.config_name}};
    if (modelopt_group_size(row) != 0 && row.scheme != SchemeId::kFp8Block)
      layer["group_size"] = modelopt_group_size(row);
    members.emplace_back(module, std::move(layer));
  }
  owner["quantized_layers"] = std::move(layers);
}

Json modelopt_block(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const WrittenGroups written = written_groups(model);
  const Json* block = source_block(model.source, kModeloptDialect);
  if (is_kept(block, model, written)) return *block;
  const Derived derived = derive(model, written);
  Json result = {{"config_groups", config_groups(derived)},
                 {"ignore", derived.excluded},
                 {"quant_algo", derived.algo_name()}};
  state_algos(derived, result);
  result["producer"] = modelopt_producer();
  result["quant_method"] = kModelopt;
  return result;
}

Json hf_quant_config(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const WrittenGroups written = written_groups(model);
  if (is_kept(model.description, model, written)) return *model.description;
  const Derived derived = derive(model, written);
  Json quantization = {{"quant_algo", derived.algo_name()}, {"kv_cache_quant_algo", nullptr}};
  state_algos(derived, quantization);
  quantization["exclude_modules"] = derived.excluded;
  return {{"producer", modelopt_producer()}, {"quantization", std::move(quantization)}};
}

// Variants of the method also name the kernels: modelopt_fp4.
bool is_modelopt(const ModelConfig& config) {
  return method_of(config).find(kModelopt) != std::string::npos;
}

ConfigForms modelopt_forms(const ModelConfig& config, const Json& description,
                           std::vector<std::string>* faults) {
  const Json* source =
      description.is_object() ? &description : source_block(config, kModeloptDialect);
  if (source == nullptr) return nullptr;
  return [block = ModeloptBlock(*source, kModeloptLists, faults)](
             std::string_view weight) -> ConfigForm {
    const StorageRow* algo = block.algo_of(module_name(weight));
    if (algo == nullptr) return {};
    return {.scheme = algo->scheme,
            .activations = algo->activations,
            .leaves_inputs = algo->activations == Activations::kWeightOnly};
  };
}

}  // namespace

const Dialect kModeloptDialect = {
    .name = kModelopt,
    .summary = "quant_method modelopt: X.weight, X.weight_scale, X.weight_scale_2, which multiply",
    .methods = {kModelopt},
    .has_config = is_modelopt,
    .storage = kModeloptStorage,
    .holds_mixtures = true,
    .heads = Heads::kBySilence,
    .description_file = "hf_quant_config.json",
    .quantization_config = modelopt_block,
    .description = hf_quant_config,
    .config_forms = modelopt_forms,
    .unread = unread_modelopt,
    .known_keys = {"quant_method", "quant_algo", "group_size", "config_groups", "ignore",
                   "exclude_modules", "quantized_layers", "producer", "has_zero_point",
                   "pre_quant_scale", "quantization", "moe_quant_algo"},
    .own_key = "quant_algo"};

Json modelopt_producer() {
  return {{"name", kModelopt}, {"version", "0.27.0"}};
}

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
    layers_->emplace(module, find_algo(algo_name_in(layer)));
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
  return layers_ ? listed(module).value_or(nullptr) : find_algo(algo_name_);
}

Exclusion ModeloptBlock::exclusion_of(std::string_view module) const {
  if (algo_name_ == kModeloptMixed && layers_)
    return listed(module) ? Exclusion::kNone : Exclusion::kWhole;
  if (excluded_.covers_for_all(module)) return Exclusion::kWhole;
  return excluded_.covers_for_any(module) ? Exclusion::kInside : Exclusion::kNone;
}

ModeloptStatement::ModeloptStatement(const Json& json, const char* its_file, const char* its_list)
    : exists(json.is_object()),
      object(exists ? json : kNothing),
      file(its_file),
      list(its_list),
      block(object, std::array{its_list}, &faults) {}

ModeloptStatement ModeloptStatement::of_file(const Json& description) {
  return {json_member(description, "quantization"), "hf_quant_config.json", kModeloptLists[0]};
}

ModeloptStatement ModeloptStatement::of_config(const Json& block) {
  const Json& body = modelopt_body(block);
  const bool is_flat = &body == &block;
  // A flat block has either key, by the version of ModelOpt; `ignore` comes first.
  const bool has_older = !body.contains(kModeloptLists[1]) && body.contains(kModeloptLists[0]);
  return {body, "config.json", kModeloptLists[is_flat && !has_older ? 1 : 0]};
}

bool ModeloptStatement::lacks_list() const {
  return is_mixed() && !json_member(object, "quantized_layers").is_object();
}

std::string unknown_algo(const Json& body) {
  const auto fault_of = [](const std::string& name) -> std::string {
    if (name.empty() || name == kModeloptMixed || find_algo(name) != nullptr) return {};
    std::vector<std::string_view> known = row_names(kModeloptStorage, &StorageRow::config_name);
    known.push_back(kModeloptMixed);
    return fmt::format("quant_algo '{}', which no loader knows{}", name, did_you_mean(name, known));
  };
  std::string fault = fault_of(algo_name_in(body));
  const Json& layers = json_member(body, "quantized_layers");
  if (!layers.is_object()) return fault;
  for (const auto& [module, layer] : layers.items()) {
    if (!fault.empty()) break;
    fault = fault_of(algo_name_in(layer));
  }
  return fault;
}

std::uint64_t modelopt_group_size(const StorageRow& algo) {
  return scheme_facts(algo.scheme).group_cols;
}

std::vector<std::string> modelopt_group_faults(const Json& group, const StorageRow& algo,
                                               std::string_view where) {
  std::vector<std::string> faults;
  constexpr const char *kWeights = "weights", *kInputs = "input_activations";
  for (const char* owner : {kWeights, kInputs}) {
    const bool is_dynamic = owner == kInputs && algo.activations == Activations::kDynamic;
    Json wanted =
        numbers(scheme_facts(algo.scheme).code_bits, is_dynamic, modelopt_group_size(algo), "");
    wanted["symmetric"] = true;
    for (const auto& [key, value] : wanted.items()) {
      const Json& said = json_member(json_member(group, owner), key);
      if (!said.is_null() && said != value)
        faults.push_back(fmt::format("{}.{}.{} is {}, but quant_algo {} means {}", where, owner,
                                     key, config_text(said), algo.config_name, config_text(value)));
    }
  }
  // ModelOpt describes only weights there; every engine quantizes activations too.
  if (algo.scheme == SchemeId::kFp8Block) return faults;
  const bool has_inputs = json_member(group, kInputs).is_object();
  if (has_inputs == (algo.activations == Activations::kWeightOnly))
    faults.push_back(fmt::format("{} has {}input_activations, but quant_algo {} {} them", where,
                                 has_inputs ? "" : "no ", algo.config_name,
                                 has_inputs ? "leaves out" : "quantizes"));
  return faults;
}

}  // namespace ingot::formats
