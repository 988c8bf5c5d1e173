#include "engines/modules/modules.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/mtp_names.h"
#include "formats/storage/encoding.h"
#include "formats/text/spelling.h"

namespace ingot::engines {

namespace {

constexpr std::string_view kWeight = ".weight";

bool is_other_linear(const LogicalTensor& tensor) {
  if (tensor.rule == nullptr) {
    const std::string_view name = tensor.name;
    return tensor.shape.size() == 2 && name.ends_with(kWeight) && !name.ends_with("norm.weight") &&
           name.find("embed") == std::string_view::npos;
  }
  switch (tensor.rule->role) {
    case Role::kHead:
    case Role::kRouter:
    case Role::kIndexerWeights:
    case Role::kMtpProj:
    case Role::kMtpHead:
      return true;
    default:
      return false;
  }
}

std::string built_name(const LinearModule& module, const formats::ModelConfig& config) {
  constexpr std::string_view kModel = "model.";
  if (!config.text.bare_words.empty()) return formats::text_model_name(module.name, config.text);
  const bool is_tower = formats::role_of(module.tensor->rule) == Role::kOtherModality;
  return is_tower && module.name.starts_with(kModel) ? module.name.substr(kModel.size())
                                                     : std::string();
}

std::optional<formats::InputMajorLayout> packed_of(const Checkpoint& checkpoint) {
  try {
    return formats::input_major_layout(checkpoint.config());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<LinearModule> find_modules(const Checkpoint& checkpoint, bool is_packed) {
  const formats::ModelConfig& config = checkpoint.config();
  const bool has_block = checkpoint.family().name.starts_with("step3p");
  std::vector<LinearModule> modules;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (is_read_only(tensor.encoding.scheme) && !is_packed) continue;
    LinearModule module;
    module.scheme = held_scheme(checkpoint, tensor);
    module.is_quantized = is_quantized(module.scheme);
    module.is_quantizable =
        module.is_quantized ||
        (tensor.rule != nullptr && is_quantized_by_silence(checkpoint.dialect(), *tensor.rule));
    if (!module.is_quantizable && !is_other_linear(tensor)) continue;
    if (!module.is_quantized && tensor.encoding.scheme == SchemeId::kRaw) continue;
    module.name = tensor.name;
    if (tensor.name.ends_with(kWeight)) module.name.resize(tensor.name.size() - kWeight.size());
    module.tensor = &tensor;
    module.built_name = built_name(module, config);
    const std::string of_text = formats::text_model_name(tensor.name, config.text);
    module.is_class_head =
        tensor.rule != nullptr && tensor.rule == formats::class_head_rule(of_text, config);
    module.is_nameless = module.is_class_head && formats::has_nameless_head(config);
    formats::MtpNames names = formats::mtp_names(module.name, config.num_hidden_layers);
    if (has_block && names.head.empty()) names.head = std::move(names.block);
    module.mtp_name = std::move(names.head);
    module.draft_name = std::move(names.draft);
    modules.push_back(std::move(module));
  }
  return modules;
}

std::optional<formats::SourceActivations> activations_of(const Checkpoint& checkpoint) {
  try {
    return formats::SourceActivations(checkpoint.config(), checkpoint.dialect(),
                                      checkpoint.description());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

SchemeId held_scheme(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  const formats::Encoding& encoding = tensor.encoding;
  if (!is_read_only(encoding.scheme) ||
      formats::input_major_dialect(checkpoint.config()) == nullptr)
    return encoding.scheme;
  const formats::StoredTensor& scales = checkpoint.stored()[encoding.stored[formats::Part::kScale]];
  return scales.shape.back() == 1 ? SchemeId::kInt8Channel : SchemeId::kInt8Block;
}

EngineInput::EngineInput(const Checkpoint& checkpoint)
    : quantization(&formats::quantization_block(checkpoint.config())),
      packed(packed_of(checkpoint)),
      activations(activations_of(checkpoint)),
      modules(find_modules(checkpoint, packed.has_value())) {
  if (!quantization->is_object()) quantization = nullptr;
  has_older_key =
      quantization != nullptr &&
      quantization == &formats::json_member(*checkpoint.config().raw, "compression_config");
  if (packed && packed->packs_rows)
    says_no_zero_points = formats::is_auto_round(formats::method_of(checkpoint.config()))
                              ? formats::json_member(*quantization, "sym") != false
                              : formats::json_member(*quantization, "zero_point") == false;
  if (quantization != nullptr && checkpoint.dialect().has_config_groups)
    groups.emplace(*quantization, &group_faults);
  const Json& description = checkpoint.description();
  if (!description.is_object()) return;
  for (const auto& [key, value] : description.get_ref<const Json::object_t&>())
    described.emplace(key, &value);
}

namespace {

constexpr std::string_view kExperts = ".experts.";

/// Returns a layer's name: an engine's own for layers for multi-token prediction, or the stored
/// one.
std::string_view name_of(const LinearModule& layer, Engine engine, bool has_draft_names) {
  if (layer.is_nameless && is_vllm(engine)) return {};
  const bool is_as_stored = layer.built_name.empty() || engine == Engine::kTransformers;
  const std::string& name = is_as_stored ? layer.name : layer.built_name;
  if (!has_draft_names) return name;
  if (engine == Engine::kSglang && !layer.draft_name.empty()) return layer.draft_name;
  return is_vllm(engine) && !layer.mtp_name.empty() ? layer.mtp_name : name;
}

/// A layer on its way into a module.
struct Member {
  std::string_view name;
  Role role = Role::kOther;
  std::uint32_t expert = 0;
};

/// The module for a layer of this name, without its members.
BuiltModule built_of(const LogicalTensor& tensor, std::string_view name, Engine engine) {
  BuiltModule built;
  built.name = name;
  if (tensor.rule == nullptr) return built;
  const Role role = role_of(tensor);
  const std::size_t experts = name.rfind(kExperts);
  if (tensor.expert && is_routed_expert(role) && experts != std::string_view::npos) {
    built.kind = BuiltModule::Kind::kExperts;
    built.name.resize(experts + kExperts.size() - 1);
  } else if (role == Role::kHead || role == Role::kMtpHead || role == Role::kEmbedding) {
    built.kind = BuiltModule::Kind::kHead;
  } else if (const std::string_view leaf = joined_name(tensor, engine); !leaf.empty()) {
    built.name = std::string(parent_of(name)).append(leaf);
  }
  return built;
}

// Engines have their members in the order of roles: q, k, v; gate, up.
void set_members(BuiltModule& built, std::vector<Member> members) {
  if (built.kind == BuiltModule::Kind::kExperts) {
    const std::uint32_t first = std::ranges::min(members, {}, &Member::expert).expert;
    std::erase_if(members, [&](const Member& member) { return member.expert != first; });
  } else if (members.front().name == built.name) {
    return;  // the module is one stored layer
  }
  std::ranges::stable_sort(members, {}, &Member::role);
  for (const Member& member : members) built.members.emplace_back(member.name);
}

}  // namespace

std::string_view parent_of(std::string_view name) {
  return name.substr(0, name.rfind('.') + 1);
}

bool is_vllm(Engine engine) {
  return engine == Engine::kVllm || engine == Engine::kVllmAscend;
}

std::string_view joined_name(const LogicalTensor& tensor, Engine engine) {
  if (tensor.rule == nullptr || engine == Engine::kTransformers) return {};
  const Role role = tensor.rule->role;
  if (role == Role::kExpertGate || role == Role::kExpertUp) return "experts.w13";
  if (role == Role::kExpertDown) return "experts.w2";
  switch (tensor.rule->fuse) {
    case formats::Fuse::kQaKva:
      return engine == Engine::kSglang ? "fused_qkv_a_proj_with_mqa" : "fused_qkv_a_proj";
    case formats::Fuse::kGateUp:
      return "gate_up_proj";
    case formats::Fuse::kQkv:
      return "qkv_proj";
    default:
      return {};
  }
}

BuiltModules::BuiltModules(const Checkpoint& checkpoint, std::span<const LinearModule> layers,
                           Engine engine, bool has_draft_names) {
  std::unordered_map<std::string, std::size_t> number_of;
  std::vector<std::vector<Member>> members;
  for (const LinearModule& layer : layers) {
    const std::string_view name = name_of(layer, engine, has_draft_names);
    BuiltModule built = built_of(*layer.tensor, name, engine);
    const auto [place, is_new] = number_of.try_emplace(built.name, modules_.size());
    if (is_new) {
      modules_.push_back(std::move(built));
      members.emplace_back();
    }
    module_of_.push_back(place->second);
    members[place->second].push_back(
        {.name = name, .role = role_of(*layer.tensor), .expert = layer.tensor->expert.value_or(0)});
  }
  // SGLang's DeepSeek knows only what its attention joins: models/deepseek_v2.py:3250, 3266.
  is_latent_ = std::ranges::any_of(checkpoint.family().rules, [](const formats::TensorRule& rule) {
    return rule.fuse == formats::Fuse::kQaKva;
  });
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    BuiltModule& built = modules_[i];
    set_members(built, std::move(members[i]));
    const bool is_left_out =
        engine == Engine::kSglang && is_latent_ && built.name.ends_with("gate_up_proj");
    built.has_known_members =
        built.kind == BuiltModule::Kind::kLinear && !built.members.empty() && !is_left_out;
  }
}

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

constexpr std::string_view kExpertWord = "experts";
// Parts of a name by which SGLang finds what its attention joins: modelopt_quant.py:401.
constexpr std::array<std::string_view, 4> kLatentParts = {"q_a_proj", "q_b_proj",
                                                          "kv_a_proj_with_mqa", "kv_b_proj"};

std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

/// An entry about experts that begins with the module's name, or has it inside.
bool is_inside_expert_entry(std::string_view name, std::span<const std::string> entries) {
  return std::ranges::any_of(entries, [&](const std::string& entry) {
    return contains(entry, kExpertWord) && contains(entry, name);
  });
}

/// True if `entry` is a run of components of `name`.
bool has_components(std::string_view name, std::string_view entry) {
  while (entry.ends_with('.')) entry.remove_suffix(1);
  for (std::size_t at = name.find(entry); at != std::string_view::npos;
       at = name.find(entry, at + 1)) {
    const std::size_t end = at + entry.size();
    const bool begins = at == 0 || name[at - 1] == '.';
    if (begins && (end == name.size() || name[end] == '.') && !entry.empty()) return true;
  }
  return false;
}

/// The expression of a glob of Python's fnmatch, or of SGLang's form of it
/// (modelopt_quant.py:309), in which all but dots and stars is left as it is.
std::string expression_of(std::string_view glob, bool is_fnmatch) {
  constexpr std::string_view kSpecial = R"(\^$.|+(){}[)";
  std::string text = "re:(?:";
  for (std::size_t i = 0; i < glob.size(); ++i) {
    const char letter = glob[i];
    if (letter == '*') {
      text += ".*";
    } else if (letter == '.') {
      text += "\\.";
    } else if (is_fnmatch && letter == '?') {
      text += '.';
    } else if (is_fnmatch && letter == '[' && contains(glob.substr(i), "]")) {
      const bool is_not = glob.substr(i + 1).starts_with('!');
      text += is_not ? "[^" : "[";
      i += is_not ? 1 : 0;
    } else {
      if (is_fnmatch && contains(kSpecial, std::string_view(&letter, 1))) text += '\\';
      text += letter;
    }
  }
  return text + ")\\z";
}

}  // namespace

Listed members_listed(const BuiltModule& module, const std::function<bool(std::string_view)>& has) {
  const auto n = std::ranges::count_if(module.members, has);
  if (n == 0) return Listed::kNo;
  return std::cmp_equal(n, module.members.size()) ? Listed::kYes : Listed::kTorn;
}

Listed listed_in_vllm(const BuiltModule& module, std::span<const std::string> entries) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(entries, name) != entries.end();
  };
  if (module.has_known_members)
    return has(module.name) ? Listed::kYes : members_listed(module, has);
  const bool is_listed = contains(module.name, kExpertWord)
                             ? is_inside_expert_entry(module.name, entries)
                             : has(module.name);
  return is_listed ? Listed::kYes : Listed::kNo;
}

Listed listed_in_sglang(const BuiltModule& module, std::span<const std::string> entries) {
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(
        entries, [&](const std::string& entry) { return has_components(name, entry); });
  };
  // The engine knows the members of gate_up_proj and qkv_proj, whatever the model says.
  if (module.kind == BuiltModule::Kind::kLinear && !module.members.empty())
    return members_listed(module, has);
  const bool is_listed = has(module.name) || (contains(module.name, kExpertWord) &&
                                              is_inside_expert_entry(module.name, entries));
  return is_listed ? Listed::kYes : Listed::kNo;
}

ExcludedModules::ExcludedModules(std::vector<std::string> entries, Engine engine, bool renames)
    : engine_(engine) {
  for (std::string& entry : entries) {
    const bool has_star = entry.size() >= 2 && entry.ends_with('*') && !entry.ends_with(".*");
    if (is_vllm(engine) && renames && has_star) {
      entry.pop_back();
      entries_.push_back(entry + ".*");
    }
    entries_.push_back(std::move(entry));
  }
  for (const std::string& entry : entries_) {
    try {
      patterns_.emplace_back(expression_of(entry, is_vllm(engine)));
    } catch (const Error&) {
      patterns_.emplace_back("re:(?!)");
    }
  }
}

// modelopt.py:185.
bool ExcludedModules::in_vllm(const BuiltModule& module) const {
  return std::ranges::any_of(entries_,
                             [&](const std::string& entry) {
                               return entry != module.name && contains(module.name, entry);
                             }) ||
         std::ranges::any_of(patterns_,
                             [&](const Pattern& pattern) { return pattern.matches(module.name); });
}

// modelopt_quant.py:379.
bool ExcludedModules::in_sglang(const BuiltModule& module) const {
  const std::vector<std::string_view> words = name_words(module.name);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (patterns_[i].matches(module.name)) return true;
    const auto is_match = [&](std::string_view word) { return patterns_[i].matches(word); };
    if (std::ranges::any_of(words, is_match)) return true;
    const std::string_view tail = last_word(entries_[i]);
    if (is_in(kLatentParts, tail) && contains(last_word(module.name), tail)) return true;
  }
  return false;
}

Listed ExcludedModules::find(const BuiltModule& module) const {
  if (is_vllm(engine_)) {
    const Listed listed = listed_in_vllm(module, entries_);
    return listed == Listed::kNo && in_vllm(module) ? Listed::kYes : listed;
  }
  // SGLang asks for experts only in the second way: modelopt_quant.py:352.
  const Listed listed =
      module.kind == BuiltModule::Kind::kExperts ? Listed::kNo : listed_in_sglang(module, entries_);
  return listed == Listed::kNo && in_sglang(module) ? Listed::kYes : listed;
}

ListableNames::ListableNames(const Checkpoint& checkpoint, std::span<const LinearModule> modules) {
  const auto add = [&](const LogicalTensor& tensor, std::string name) {
    for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
      if (const std::string_view joined = joined_name(tensor, engine); !joined.empty())
        names_.insert(std::string(parent_of(name)).append(joined));
    }
    names_.insert(std::move(name));
  };
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    for (std::string& name :
         formats::module_aliases(formats::module_name(tensor.name), checkpoint.config().text))
      add(tensor, std::move(name));
  }
  // A head is a module of a tied model too, and of a bare one's class around it.
  for (const formats::TensorRule& rule : checkpoint.family().rules) {
    if (rule.role != Role::kHead || rule.scope != formats::Scope::kModel) continue;
    const std::string_view head = formats::module_name(rule.pattern);
    names_.emplace(head);
    names_.insert(formats::stored_text_name(head, checkpoint.config().text));
  }
  for (const LinearModule& module : modules) {
    if (module.is_nameless) names_.emplace();
    for (std::string& name :
         formats::mtp_names(module.name, checkpoint.config().num_hidden_layers).all())
      add(*module.tensor, std::move(name));
  }
}

bool ListableNames::has_any(const std::string& entry) const {
  if (names_.contains(entry)) return true;
  std::optional<Pattern> pattern;
  try {
    if (entry.starts_with("re:") || entry.find_first_of("*?") != std::string::npos)
      pattern.emplace(entry);
  } catch (const Error&) {
    return true;  // a rule of its own reports this expression
  }
  return std::ranges::any_of(names_, [&](const std::string& name) {
    return pattern ? pattern->matches(name) : name.find(entry) != std::string::npos;
  });
}

const char* exemption_key(const Json& block, Engine engine) {
  // SGLang takes the first list that is there, whatever it holds: quantization/base_config.py:257.
  if (!block.contains(formats::kIgnoredLayers)) return formats::kModulesToNotConvert;
  return is_vllm(engine) && formats::json_member(block, formats::kIgnoredLayers).empty()
             ? formats::kModulesToNotConvert
             : formats::kIgnoredLayers;
}

}  // namespace ingot::engines
