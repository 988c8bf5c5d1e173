#include "engines/modules/module_lists.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/mtp_names.h"
#include "formats/text/spelling.h"

namespace ingot::engines {
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
    return true;  // other rules tell of it
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
