#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/format.h>

#include "engines/readers/config_reader.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"

// Configs of FP8 and of compressed-tensors as transformers 5.19 reads them. It asks for each linear
// layer under its stored name, builds the routed experts of a layer as one module, and layers for
// multi-token prediction not at all.

namespace ingot::engines {

using formats::ConfigGroup;
using formats::json_member;
using formats::strings_at;
using formats::text_at;

namespace {

constexpr std::string_view kExpression = "re:", kExpertsEnd = ".experts", kLinear = "Linear";

/// True if its model has a Linear where other engines never quantize.
bool is_other_linear(const LinearModule& layer) {
  const Role role = role_of(*layer.tensor);
  return role == Role::kHead || role == Role::kIndexerWeights;
}

bool is_plain_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '.';
}

/// An entry of FP8's list: quantizers/quantizers_utils.py:26.
class LeftOut {
 public:
  /// Throws for what is no expression.
  explicit LeftOut(std::string entry) : entry_(std::move(entry)) {
    if (!std::ranges::all_of(entry_, is_plain_letter))
      pattern_.emplace(std::string(kExpression).append(entry_));
  }
  /// True if it matches the beginning of the name as an expression, or is its end.
  [[nodiscard]] bool has(std::string_view module) const {
    return module.ends_with(entry_) || (pattern_ ? pattern_->matches(module) : begins(module));
  }

 private:
  // Lists may name every expert, so what has no sign but the point, for any letter, is compared.
  [[nodiscard]] bool begins(std::string_view module) const {
    return module.size() >= entry_.size() &&
           std::ranges::equal(entry_, module.substr(0, entry_.size()),
                              [](char a, char b) { return a == b || a == '.'; });
  }

  std::string entry_;
  std::optional<Pattern> pattern_;
};

}  // namespace

// FineGrainedFP8Config of utils/quantization_config.py:1690, and quantizers/auto.py:286.
void ConfigReader::read_fp8_in_transformers() {
  const Json& block = *facts_.quantization;
  const auto refuse = [&](std::string why) { refusal_ = std::move(why); };
  const std::string method = text_at(block, "quant_method");
  if (json_member(block, "quant_method").is_null()) return refuse("no quant_method");
  if (method != "fp8") {
    silence_ = "skips quant_method " + method;
    return;
  }
  transformers_ = TransformersFacts();
  if (block.contains("activation_scheme")) {
    const std::string scheme = lower_case(text_at(block, "activation_scheme"));
    if (scheme != "dynamic" && scheme != "static") return refuse("activation_scheme " + scheme);
  }
  transformers_->has_blocks =
      !block.contains("weight_block_size") || !json_member(block, "weight_block_size").is_null();
  const char* key =
      json_member(block, "modules_to_not_convert").is_null() && block.contains("ignored_layers")
          ? "ignored_layers"
          : "modules_to_not_convert";
  const Json& list = json_member(block, key);
  if (list.is_null()) return;
  transformers_->list = key;
  std::vector<std::string> entries = strings_at(block, key);
  if (list.is_string()) {  // Python takes each letter of it for an entry
    for (const char letter : list.get<std::string>()) entries.emplace_back(1, letter);
  } else if (!list.is_array()) {
    return refuse(fmt::format("{} is no list", key));
  }
  std::vector<LeftOut> left;
  for (const std::string& entry : entries) {
    try {
      left.emplace_back(entry);
    } catch (const Error&) {
      return refuse(fmt::format("{} has '{}', which is no expression", key, entry));
    }
  }
  for (const BuiltModule& module : built_.modules()) {
    const auto names = formats::module_aliases(module.name, checkpoint_.config().text);
    const bool is_left = std::ranges::any_of(left, [&](const LeftOut& entry) {
      return std::ranges::any_of(names, [&](const std::string& name) { return entry.has(name); });
    });
    listed_.push_back(is_left ? Listed::kYes : Listed::kNo);
  }
}

// apply_quantization_config of compressed-tensors, quantization/lifecycle/apply.py:97.
void ConfigReader::read_groups_in_transformers() {
  transformers_ = TransformersFacts();
  const std::vector<ConfigGroup>& groups = facts_.groups->groups();
  if (groups.empty()) {
    refusal_ = "no config_groups";
    return;
  }
  // A target that is repeated means the last group that has it.
  std::map<std::string, const ConfigGroup*> of_target;
  for (const ConfigGroup& group : groups) {
    if (!group.has_weights) refusal_ = fmt::format("config_groups.{} has no weights", group.name);
    for (const std::string& target : strings_at(*group.json, "targets")) of_target[target] = &group;
  }
  for (const auto& [target, group] : of_target) {
    TransformersFacts::Target found{.text = target, .group = group};
    if (target.starts_with(kExpression)) {
      try {
        found.pattern.emplace(target);
      } catch (const Error&) {
        refusal_ = fmt::format("target '{}' is no expression", target);
        return;
      }
    }
    transformers_->targets.push_back(std::move(found));
  }
  // utils/match.py:141: names, then expressions, each in order of their text.
  std::ranges::stable_sort(transformers_->targets, {}, [](const TransformersFacts::Target& target) {
    return target.text.find(kExpression) != std::string::npos;
  });
  // integrations/compressed_tensors.py:27.
  const auto group_with = [&](auto&& is_wanted) -> const ConfigGroup* {
    for (const ConfigGroup& group : groups)
      if (std::ranges::any_of(strings_at(*group.json, "targets"), is_wanted)) return &group;
    return nullptr;
  };
  const auto is_expression = [](const std::string& target) {
    return target.starts_with(kExpression);
  };
  transformers_->of_experts = group_with([&](const std::string& target) {
    return is_expression(target) && target.find("experts") != std::string::npos;
  });
  if (transformers_->of_experts == nullptr)
    transformers_->of_experts =
        group_with([&](const std::string& target) { return !is_expression(target); });
  if (transformers_->of_experts == nullptr) transformers_->of_experts = &groups.front();
  refuse_other_modules();
}

bool ConfigReader::ignores_in_transformers(std::string_view module) const {
  const formats::ConfigGroups& groups = *facts_.groups;
  const auto names = formats::module_aliases(module, checkpoint_.config().text);
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return groups.ignore_matches(name); });
}

const ConfigReader::TransformersFacts::Target* ConfigReader::named_in_transformers(
    std::string_view module) const {
  for (const TransformersFacts::Target& target : transformers_->targets)
    if (target.pattern ? target.pattern->matches(module) : target.text == module) return &target;
  return nullptr;
}

// A target that takes in a module which is neither linear nor an embedding ends the loading.
void ConfigReader::refuse_other_modules() {
  std::set<std::string> linear, others = {""};
  for (std::size_t i = 0; i < facts_.modules.size(); ++i) {
    const BuiltModule& module = built_.modules()[built_.module_of(i)];
    const LinearModule& layer = facts_.modules[i];
    if (module.kind != BuiltModule::Kind::kExperts &&
        (layer.is_quantizable || is_other_linear(layer)))
      linear.insert(module.name);
  }
  for (const LogicalTensor& tensor : checkpoint_.tensors()) {
    const bool is_built = !tensor.layer || *tensor.layer < checkpoint_.config().num_hidden_layers;
    if (!is_built || tensor.name.find("embed") != std::string::npos) continue;
    std::string_view name = tensor.name;
    const std::size_t experts = name.find(std::string(kExpertsEnd) + ".");
    if (experts != std::string_view::npos) name = name.substr(0, experts + kExpertsEnd.size() + 1);
    for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos; dot = name.rfind('.')) {
      name = name.substr(0, dot);
      if (!linear.contains(std::string(name))) others.emplace(name);
    }
  }
  for (const std::string& module : others) {
    const TransformersFacts::Target* target = named_in_transformers(module);
    if (target == nullptr || ignores_in_transformers(module)) continue;
    refusal_ = fmt::format("target '{}' takes in {}, which is no linear layer", target->text,
                           module.empty() ? "the whole model" : "'" + module + "'");
    return;
  }
}

Belief ConfigReader::by_transformers(std::size_t number) const {
  const LinearModule& layer = facts_.modules[number];
  const BuiltModule& built = built_.modules()[built_.module_of(number)];
  const bool is_of_experts = built.kind == BuiltModule::Kind::kExperts;
  const auto plain = [](std::string because) { return Belief{"plain", std::move(because)}; };
  const auto of_group = [&](const ConfigGroup& group) {
    const std::string scheme =
        group.scheme ? std::string(scheme_facts(*group.scheme).name) : "unknown scheme";
    return Belief{scheme, "config_groups." + group.name};
  };
  const LogicalTensor& tensor = *layer.tensor;
  const std::uint64_t n_layers = checkpoint_.config().num_hidden_layers;
  if (tensor.layer && n_layers != 0 && *tensor.layer >= n_layers)
    return {stored_scheme(layer), "not built"};
  const Role role = role_of(tensor);
  const bool is_own_router = role == Role::kRouter && layer.name.ends_with(".gate");
  if (is_own_router || !(layer.is_quantizable || is_other_linear(layer)))
    return plain("always plain");
  if (facts_.groups && is_of_experts) {
    // Whatever `ignore` says; experts without scales stay as they are where the group is FP8.
    const ConfigGroup& group = *transformers_->of_experts;
    const Belief belief = of_group(group);
    return !layer.is_quantized && belief.scheme.starts_with("fp8") ? plain("no scales") : belief;
  }
  if (facts_.groups) {
    if (ignores_in_transformers(built.name) || facts_.groups->ignores_name(kLinear))
      return plain("ignore");
    if (const auto* named = named_in_transformers(built.name)) return of_group(*named->group);
    for (const TransformersFacts::Target& target : transformers_->targets)
      if (target.text == kLinear || target.text == "Module") return of_group(*target.group);
    return plain("no target matches");
  }
  // Models of transformers keep weights_proj of indexers in F32.
  if (role == Role::kIndexerWeights) return plain("always plain");
  if (transformers_->list == nullptr && role == Role::kHead) return plain("no list");
  if (transformers_->list != nullptr && listed_[built_.module_of(number)] == Listed::kYes)
    return plain(transformers_->list);
  if (is_of_experts && fp4_experts_) return {"mxfp4", "expert_dtype"};
  return {transformers_->has_blocks ? "fp8-block" : "fp8-tensor", "quant_method fp8"};
}

}  // namespace ingot::engines
