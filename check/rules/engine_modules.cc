#include "check/rules/engine_modules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/base/error.h"

namespace ingot::check {

using formats::Engine;

namespace {

constexpr std::string_view kExperts = ".experts.";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// What engines call layers for multi-token prediction.
struct NamesOfDrafts {
  Engine engine;
  bool are_own = true;  ///< SGLang's are not the stored ones
};

bool is_gate_or_up(Role role) {
  return role == Role::kExpertGate || role == Role::kExpertUp;
}

std::string_view name_of(const LinearModule& layer, const NamesOfDrafts& names) {
  if (names.engine == Engine::kSglang && names.are_own && !layer.draft_name.empty())
    return layer.draft_name;
  return is_vllm(names.engine) && !layer.mtp_name.empty() ? layer.mtp_name : layer.name;
}

/// A layer on its way into a module.
struct Member {
  std::string_view name;
  Role role = Role::kOther;
  std::uint32_t expert = 0;
};

std::string parent_and(std::string_view name, std::string_view leaf) {
  return std::string(name.substr(0, name.rfind('.') + 1)).append(leaf);
}

/// The module for a layer of this name, without its members.
BuiltModule built_of(const LogicalTensor& tensor, std::string_view name, Engine engine) {
  BuiltModule built;
  built.name = name;
  if (tensor.rule == nullptr) return built;
  const Role role = tensor.rule->role;
  const std::size_t experts = name.rfind(kExperts);
  if (tensor.expert && is_routed_expert(role) && experts != std::string_view::npos) {
    built.kind = BuiltModule::Kind::kExperts;
    built.name.resize(experts + kExperts.size() - 1);
  } else if (role == Role::kHead || role == Role::kMtpHead) {
    built.kind = BuiltModule::Kind::kHead;
  } else if (const std::string_view leaf = joined_name(tensor, engine); !leaf.empty()) {
    built.name = parent_and(name, leaf);
  }
  return built;
}

// Engines have their members in the order of roles: q, k, v; gate, up.
void set_members(BuiltModule& built, std::vector<Member> members) {
  if (built.kind == BuiltModule::Kind::kExperts) {
    const std::uint32_t first = std::ranges::min(members, {}, &Member::expert).expert;
    std::erase_if(members, [&](const Member& member) { return member.expert != first; });
  } else if (members.front().name == built.name) {
    return;  // made of one layer
  }
  std::ranges::stable_sort(members, {}, &Member::role);
  for (const Member& member : members) built.members.emplace_back(member.name);
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

/// Whether `entry` is some of the components of `name`, one behind the other.
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

bool is_vllm(Engine engine) {
  return engine == Engine::kVllm || engine == Engine::kVllmAscend;
}

std::string_view joined_name(const LogicalTensor& tensor, Engine engine) {
  if (tensor.rule == nullptr || engine == Engine::kTransformers) return {};
  const Role role = tensor.rule->role;
  if (is_gate_or_up(role)) return "experts.w13";
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
  std::map<std::string, std::size_t> number_of;
  std::vector<std::vector<Member>> members;
  const NamesOfDrafts names{.engine = engine, .are_own = has_draft_names};
  for (const LinearModule& layer : layers) {
    const std::string_view name = name_of(layer, names);
    BuiltModule built = built_of(*layer.tensor, name, engine);
    const auto [place, is_new] = number_of.try_emplace(built.name, modules_.size());
    if (is_new) {
      modules_.push_back(std::move(built));
      members.emplace_back();
    }
    module_of_.push_back(place->second);
    const formats::TensorRule* rule = layer.tensor->rule;
    members[place->second].push_back({.name = name,
                                      .role = rule != nullptr ? rule->role : Role::kOther,
                                      .expert = layer.tensor->expert.value_or(0)});
  }
  // SGLang's DeepSeek knows what its attention joins alone: models/deepseek_v2.py:3250, 3266.
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
  // Whatever the model says, it knows what gate_up_proj and qkv_proj are made of.
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
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (patterns_[i].matches(module.name)) return true;
    std::string_view rest = module.name;
    while (!rest.empty()) {
      const std::string_view word = rest.substr(0, rest.find('.'));
      if (patterns_[i].matches(word)) return true;
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    }
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
  // SGLang asks for experts in the second way alone: modelopt_quant.py:352.
  const Listed listed =
      module.kind == BuiltModule::Kind::kExperts ? Listed::kNo : listed_in_sglang(module, entries_);
  return listed == Listed::kNo && in_sglang(module) ? Listed::kYes : listed;
}

}  // namespace ingot::check
