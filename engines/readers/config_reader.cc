#include "engines/readers/config_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "formats/dialect/deepseek.h"
#include "formats/dialect/modelslim.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"

namespace ingot::engines {

using formats::ConfigGroup;
using formats::Exclusion;
using formats::json_member;
using formats::StorageRow;
using formats::strings_at;
using formats::text_at;

namespace {

constexpr std::string_view kPlain = "plain";
constexpr std::string_view kRefused = "refused";

Belief plain(std::string because) {
  return {std::string(kPlain), std::move(because)};
}

Belief refused(std::string because) {
  return {std::string(kRefused), std::move(because)};
}

Belief quantized(SchemeId scheme, std::string because) {
  return {std::string(scheme_facts(scheme).name), std::move(because)};
}

Belief torn(const BuiltModule& module, std::string_view list) {
  return refused(fmt::format("{} has some of {}", list, module.name));
}

std::string method_of(const Json& block) {
  return text_at(block, "quant_method");
}

/// True if two groups say the same of weights and activations.
bool says_the_same(const ConfigGroup* a, const ConfigGroup* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return std::ranges::all_of(
      std::array{"weights", "input_activations", "output_activations", "format"},
      [&](const char* key) { return json_member(*a->json, key) == json_member(*b->json, key); });
}

}  // namespace

std::string stored_scheme(const LinearModule& module) {
  return std::string(module.is_quantized ? scheme_facts(module.scheme).name : kPlain);
}

ConfigReader::ConfigReader(const Checkpoint& checkpoint, const EngineInput& facts,
                           const EngineRow& engine, bool has_draft_names)
    : checkpoint_(checkpoint),
      facts_(facts),
      engine_(engine.engine),
      has_draft_names_(has_draft_names),
      built_(checkpoint, facts.modules, engine.engine, has_draft_names) {
  for (std::size_t i = 0; i < facts.modules.size(); ++i) {
    if (role_of(*facts.modules[i].tensor) == Role::kSharedDown) shared_downs_.push_back(i);
  }
  if (facts_.quantization != nullptr) {
    fp4_experts_ = has_fp4_experts();
    list_ = exemption_key(*facts_.quantization, engine_);
    method_scheme_ = scheme_of_method();
    const std::string method = method_of(*facts_.quantization);
    because_ = fmt::format("quant_method {}", method.empty() ? "(none)" : method);
  }
  const std::string_view dialect = checkpoint.dialect().name;
  if (dialect == "modelopt") {
    read_modelopt();
  } else if (facts_.groups && engine_ == Engine::kTransformers) {
    read_groups_in_transformers();
  } else if (facts_.groups) {
    const bool has_null = facts_.quantization->contains("ignore") &&
                          json_member(*facts_.quantization, "ignore").is_null();
    if (has_null) refusal_ = "ignore is null";
    for (const ConfigGroup& group : facts_.groups->groups()) {
      if (!group.has_weights) refusal_ = fmt::format("config_groups.{} has no weights", group.name);
    }
    if (!refusal_.empty()) return;
    for (const BuiltModule& module : built_.modules()) grouped_.push_back(by_groups(module));
  } else if (facts_.packed && reads_config(checkpoint.dialect(), engine_)) {
    read_packed();
  } else if (facts_.quantization != nullptr && dialect == "deepseek") {
    read_fp8();
  }
}

// SGLang's DeepSeek compares the configs of both linears of shared experts where the first is FP8:
// models/deepseek_v2.py:967.
Belief ConfigReader::belief(std::size_t layer) const {
  Belief belief = own_belief(layer);
  if (facts_.modules[layer].is_nameless && is_vllm(engine_) && belief.scheme != kPlain)
    belief.because += ", since it has no name there that a list could have";
  const Role role = role_of(*facts_.modules[layer].tensor);
  const bool is_of_shared = role == Role::kSharedGate || role == Role::kSharedUp;
  if (!is_sglang() || !is_of_shared || !built_.is_latent() || !belief.scheme.starts_with("fp8"))
    return belief;
  const std::string_view parent = parent_of(facts_.modules[layer].name);
  for (const std::size_t i : shared_downs_) {
    const LinearModule& other = facts_.modules[i];
    if (parent_of(other.name) == parent && own_belief(i).scheme == kPlain)
      return refused(fmt::format("{} next to it is plain", other.name));
  }
  return belief;
}

Belief ConfigReader::own_belief(std::size_t layer) const {
  const LinearModule& module = facts_.modules[layer];
  const BuiltModule& built = built_.modules()[built_.module_of(layer)];
  if (!refusal_.empty()) return refused(refusal_);
  if (!silence_.empty()) return plain(silence_);
  const bool reads_older_key =
      engine_ == Engine::kVllm || engine_ == Engine::kSglang || engine_ == Engine::kVllmAscend;
  if (facts_.has_older_key && !reads_older_key) return plain("compression_config is not read");
  if (transformers_) return by_transformers(layer);
  // SGLang builds every router without a config: models/qwen3_moe.py, models/qwen2_moe.py.
  const Role role = role_of(*module.tensor);
  const bool is_router = role == Role::kRouter || role == Role::kSharedRouter;
  if (is_sglang() && is_router) return plain("always plain");
  if (is_sglang() && facts_.groups && role == Role::kEmbedding) return plain("always plain");
  // Heads of classes are built in the same way: models/qwen3_classification.py:136 and others.
  if (is_sglang() && module.is_class_head) return plain("always plain");
  const bool may_be_named = (facts_.groups || packed_) && built.kind == BuiltModule::Kind::kHead;
  if (!module.is_quantizable && !may_be_named) return plain("always plain");
  if (facts_.groups) return grouped_[built_.module_of(layer)];
  if (packed_) return by_packed(layer);
  if (modelopt_)
    return by_modelopt(built, is_sglang() && has_draft_names_ && !module.draft_name.empty());
  if (block_) return by_block(module);
  if (checkpoint_.dialect().name == "modelslim") return by_description(module);
  if (facts_.quantization == nullptr) return plain("no quantization_config");
  const bool is_expert = is_routed_expert(role);
  const bool is_mxfp4 = checkpoint_.dialect().name == "mxfp4";
  if (is_mxfp4 && !is_expert) return plain("not an expert");
  const SchemeId scheme = is_mxfp4                    ? SchemeId::kMxfp4
                          : is_expert && fp4_experts_ ? scheme_of_fp4_experts(module)
                                                      : method_scheme_;
  const Listed listed = !listed_.empty() ? listed_[built_.module_of(layer)]
                        : formats::is_exempt(checkpoint_.config(), module.tensor->name, exempt_)
                            ? Listed::kYes
                            : Listed::kNo;
  if (listed == Listed::kTorn) return torn(built, list_);
  return listed == Listed::kYes ? plain(list_) : quantized(scheme, because_);
}

// compressed-tensors.

Listed ConfigReader::ignored(const BuiltModule& module, std::string_view name) const {
  const formats::ConfigGroups& groups = *facts_.groups;
  const bool is_whole = name == module.name;
  // Names of towers are changed in lists as in files, but for expressions:
  // compressed_tensors.py:129.
  if (groups.ignores_name(std::string("model.").append(name))) return Listed::kYes;
  if (!is_sglang()) {
    if (groups.ignore_matches(name)) return Listed::kYes;
    if (!is_whole || !module.has_known_members) return Listed::kNo;
    return members_listed(module, [&](std::string_view n) { return groups.ignore_matches(n); });
  }
  // The last words of a name are enough there: compressed_tensors/utils.py:84.
  const auto has = [&](std::string_view full) {
    if (groups.ignore_matches(full)) return true;
    for (std::size_t dot = full.find('.'); dot != std::string_view::npos;
         dot = full.find('.', dot + 1)) {
      if (groups.ignores_name(full.substr(dot + 1))) return true;
    }
    return false;
  };
  if (is_whole && module.has_known_members)
    return groups.ignores_name(name) ? Listed::kYes : members_listed(module, has);
  return has(name) ? Listed::kYes : Listed::kNo;
}

// vLLM asks for the members before the class, SGLang behind it.
const ConfigGroup* ConfigReader::target(const BuiltModule& module, std::string_view name) const {
  const formats::ConfigGroups& groups = *facts_.groups;
  if (const ConfigGroup* named = groups.named_target(name)) return named;
  const auto of_members = [&]() -> const ConfigGroup* {
    if (name != module.name || !module.has_known_members) return nullptr;
    const bool all_named = std::ranges::all_of(module.members, [&](const std::string& member) {
      return groups.named_target(member) != nullptr;
    });
    return all_named ? groups.named_target(module.members.front()) : nullptr;
  };
  const auto of_class = [&]() -> const ConfigGroup* {
    switch (module.kind) {
      case BuiltModule::Kind::kHead:
        return nullptr;
      case BuiltModule::Kind::kLinear:
        return groups.class_target("Linear");
      case BuiltModule::Kind::kExperts:
        break;
    }
    // A target `Linear` is for experts too, unless another names their class.
    const ConfigGroup* own = groups.class_target(is_sglang() ? "FusedMoE" : "RoutedExperts");
    return own != nullptr ? own : groups.exact_target("Linear");
  };
  if (!is_sglang()) {
    if (const ConfigGroup* found = of_members()) return found;
    return of_class();
  }
  const ConfigGroup* found = of_class();
  return found != nullptr ? found : of_members();
}

Belief ConfigReader::by_group(const BuiltModule& module, std::string_view name) const {
  const Listed listed = ignored(module, name);
  if (listed == Listed::kTorn) return torn(module, "ignore");
  if (listed == Listed::kYes) return plain("ignore");
  const ConfigGroup* group = target(module, name);
  if (group == nullptr) {
    const bool is_needed =
        is_sglang() && module.kind != BuiltModule::Kind::kHead && facts_.groups->has_targets();
    return is_needed ? refused("no target matches") : plain("no target matches");
  }
  const std::string because = "config_groups." + group->name;
  if (!group->has_weights) return plain(because);
  if (!group->scheme) return {"unknown scheme", because};
  if (const std::string format = other_format(*group, module); !format.empty())
    return refused(fmt::format("{} with format {}", because, format));
  if (const std::string_view fault = block_fault(*group, module); !fault.empty())
    return refused(fmt::format("{} {}", because, fault));
  return quantized(*group->scheme, because);
}

// SGLang's config has one size of blocks (compressed_tensors.py:273). linear.py:1052 and :1312 ask
// for it where they join weights, and deepseek_weight_loader.py:650 and :714 for kv_b_proj.
std::string_view ConfigReader::block_fault(const ConfigGroup& group,
                                           const BuiltModule& module) const {
  if (!is_sglang() || module.kind != BuiltModule::Kind::kLinear) return {};
  const SchemeFacts& scheme = scheme_facts(group.scheme.value());
  const bool is_block = scheme.id == SchemeId::kFp8Block;
  const bool is_kv_b = module.name.ends_with(".kv_b_proj");
  const bool is_joined = module.name.ends_with(".qkv_proj") ||
                         module.name.ends_with(".gate_up_proj") ||
                         module.name.ends_with(".in_proj_qkvz");
  const ConfigGroup* linears = facts_.groups->exact_target("Linear");
  const bool has_size =
      linears != nullptr &&
      !json_member(json_member(*linears->json, "weights"), "block_structure").is_null();
  if (is_block && (is_joined || is_kv_b) && !has_size)
    return "without the target \"Linear\", from which it takes the size of blocks (ingot repair "
           "writes it)";
  const bool has_bytes = has_e4m3_codes(scheme) || has_int8_codes(scheme);
  if (is_kv_b && !is_block && has_bytes && has_size)
    return "and takes it for one in blocks, as the target \"Linear\" is (in blocks too, or plain)";
  if (is_kv_b && scheme.code_bits < 8)
    return "packs it, and its `weight` is asked for after loading (leave it plain)";
  return {};
}

// vLLM's compressed_tensors.py:860, 872; SGLang's has the same with one word more.
std::string ConfigReader::other_format(const ConfigGroup& group, const BuiltModule& module) const {
  constexpr std::string_view kPacked = "pack-quantized";
  constexpr std::array<std::string_view, 4> kWithActivations = {
      "naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized"};
  const SchemeFacts& scheme = scheme_facts(group.scheme.value());
  // SGLang reads experts only by the format of the block.
  const bool is_of_block =
      group.format.empty() || (is_sglang() && module.kind == BuiltModule::Kind::kExperts);
  std::string format = is_of_block ? text_at(*facts_.quantization, "format") : group.format;
  if (format.empty()) format = "(none)";
  if (has_int4_codes(scheme)) return format == kPacked ? std::string() : format;
  const bool is_read = has_int8_codes(scheme) || (is_sglang() && scheme.id == SchemeId::kNvfp4) ||
                       scheme.id == SchemeId::kFp8Block || scheme.id == SchemeId::kFp8Channel ||
                       scheme.id == SchemeId::kFp8Tensor;
  if (!is_read || module.kind == BuiltModule::Kind::kExperts) return {};
  const bool is_known = is_in(kWithActivations, format) || (is_sglang() && format == kPacked);
  return is_known ? std::string() : format;
}

Belief ConfigReader::by_groups(const BuiltModule& module) const {
  if (module.kind != BuiltModule::Kind::kExperts) return by_group(module, module.name);
  const std::string& first = module.members.front();
  const Belief belief = by_group(module, first);
  const bool is_plain = belief.scheme == kPlain;
  for (const std::string& member : module.members) {
    const Belief other = by_group(module, member);
    if (other.scheme == kRefused) return other;
    const bool is_same = is_plain ? other.scheme == kPlain
                                  : other.scheme != kPlain && says_the_same(target(module, first),
                                                                            target(module, member));
    if (!is_same) return refused(fmt::format("{} is not said to be as {} is", member, first));
  }
  return belief;
}

// ModelOpt.

Belief ConfigReader::by_block(const LinearModule& module) const {
  const Exclusion exclusion = block_->exclusion_of(module.name);
  if (exclusion == Exclusion::kWhole) return plain("excluded modules");
  // A module that is excluded only for others is under the algorithm all the same.
  const StorageRow* algo = exclusion == Exclusion::kNone
                               ? block_->algo_of(module.name)
                               : find_storage(checkpoint_.dialect(), block_->algo_name());
  const std::string because = "quant_algo " + block_->algo_name();
  return algo == nullptr ? Belief{"unknown scheme", because} : quantized(algo->scheme, because);
}

Belief ConfigReader::by_description(const LinearModule& module) const {
  const auto entry = facts_.described.find(module.tensor->name);
  if (entry == facts_.described.end() || !entry->second->is_string())
    return plain("not in the description");
  const std::string& text = entry->second->get_ref<const std::string&>();
  const formats::DescribedType* type = formats::find_described_type(text);
  if (type == nullptr || !type->scheme) return {"unknown scheme", text};
  return scheme_facts(*type->scheme).quantized ? quantized(*type->scheme, text) : plain(text);
}

// DeepSeek's.

void ConfigReader::read_fp8() {
  const Json& block = *facts_.quantization;
  const std::string method = method_of(block);
  if (engine_ == Engine::kTransformers) return read_fp8_in_transformers();
  if (engine_ == Engine::kDeepseek) return;  // reads no list
  if (!is_vllm(engine_) && !is_sglang()) {
    exempt_ = strings_at(block, list_);
    std::ranges::sort(exempt_);
    return;
  }
  if (method.empty()) {
    (is_vllm(engine_) ? silence_ : refusal_) = "no quant_method";
    return;
  }
  // fp8.py:106 of vLLM, :220 of SGLang.
  const std::string scheme = text_at(block, "activation_scheme");
  const bool has_block = !json_member(block, "weight_block_size").is_null();
  if (scheme != "static" && scheme != "dynamic") {
    refusal_ = "activation_scheme " + (scheme.empty() ? std::string("(none)") : scheme);
  } else if (has_block && scheme != "dynamic") {
    refusal_ = "activation_scheme static with weight_block_size";
  }
  exempt_ = strings_at(block, list_);
  if (is_sglang()) {
    // SGLang looks for each with and without `model.` before it: fp8.py:318.
    const std::vector<std::string> given = std::exchange(exempt_, {});
    constexpr std::string_view kModel = "model.";
    for (std::string_view entry : given) {
      if (entry.starts_with(kModel)) entry.remove_prefix(kModel.size());
      exempt_.emplace_back(entry);
      exempt_.push_back(std::string(kModel).append(entry));
    }
  }
  for (const BuiltModule& module : built_.modules()) listed_.push_back(exempted(module));
}

// DeepSeek's FP8 says one thing of all layers that engines build quantized.
SchemeId ConfigReader::scheme_of_method() const {
  const Json& block = *facts_.quantization;
  if (method_of(block) == "blockwise_int8") return SchemeId::kInt8Block;
  return json_member(block, "weight_block_size").is_array() ? SchemeId::kFp8Block
                                                            : SchemeId::kFp8Tensor;
}

// DeepSeek-V4 says so next to the block, V4.1 in it.
bool ConfigReader::has_fp4_experts() const {
  for (const Json* object : {&*checkpoint_.config().raw, facts_.quantization}) {
    const Json& said = json_member(*object, "expert_dtype");
    if (!said.is_null()) return said == "fp4";
  }
  // vLLM's bailing_moe_v3.py:252 and fp8.py:199; SGLang's model_config.py:728, 735.
  const std::string_view family = checkpoint_.family().name;
  const bool is_read = is_vllm(engine_) || is_sglang();
  const auto says = [&](const char* key) {
    return json_member(*facts_.quantization, key) == formats::kMxfp4Word;
  };
  if (is_read && says(formats::kExpertMethod) && (is_sglang() || family == "bailing_hybrid"))
    return true;
  if (is_read && says(formats::kStoreDtype) && (is_vllm(engine_) || family.starts_with("mimo")))
    return true;
  // vllm/models/deepseek_v4/quant_config.py takes them for that where nothing is said.
  return is_vllm(engine_) && checkpoint_.config().model_type == "deepseek_v4";
}

// vllm/models/deepseek_v4/quant_config.py knows one word for all; SGLang leaves draft models out.
SchemeId ConfigReader::scheme_of_fp4_experts(const LinearModule& module) const {
  const Json& algo = json_member(*facts_.quantization, "moe_quant_algo");
  const auto& layer = module.tensor->layer;
  const bool is_draft = layer && *layer >= checkpoint_.config().num_hidden_layers;
  return algo == "NVFP4" && !(is_sglang() && is_draft) ? SchemeId::kNvfp4 : SchemeId::kMxfp4;
}

Listed ConfigReader::exempted(const BuiltModule& module) const {
  // A text model inside of another model may be listed by the other model's names.
  const formats::TextNesting& nesting = checkpoint_.config().text;
  const std::size_t n_names = formats::module_aliases(module.name, nesting).size();
  for (std::size_t i = 0; i < n_names; ++i) {
    BuiltModule called = module;
    called.name = formats::module_aliases(module.name, nesting)[i];
    for (std::string& member : called.members) member = formats::module_aliases(member, nesting)[i];
    const Listed listed =
        is_sglang() ? listed_in_sglang(called, exempt_) : listed_in_vllm(called, exempt_);
    if (listed != Listed::kNo) return listed;
  }
  return Listed::kNo;
}

}  // namespace ingot::engines
