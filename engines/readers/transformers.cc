#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
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
  /// Throws for an entry that is no valid expression.
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

// Whatever the config says: models of transformers build such a layer plain, or not at all.
std::optional<Reading> without_config(const ReaderInput& in, std::size_t module) {
  const LinearModule& layer = in.layer(module);
  const LogicalTensor& tensor = *layer.tensor;
  const std::uint64_t n_layers = in.checkpoint.config().num_hidden_layers;
  if (tensor.layer && n_layers != 0 && *tensor.layer >= n_layers)
    return Reading{stored_scheme(layer), "not built"};
  const bool is_own_router = role_of(tensor) == Role::kRouter && layer.name.ends_with(".gate");
  if (is_own_router || !(layer.is_quantizable || is_other_linear(layer)))
    return read_plain("always plain");
  return std::nullopt;
}

/// A target of compressed-tensors: a name, an expression, or a class.
struct Target {
  std::string text;
  std::optional<Pattern> pattern;
  const ConfigGroup* group = nullptr;
};
using Targets = std::vector<Target>;

bool ignores(const ReaderInput& in, std::string_view module) {
  const auto names = in.aliases(module);
  return std::ranges::any_of(
      names, [&](const std::string& name) { return in.facts.groups->ignore_matches(name); });
}

const Target* named_target(const Targets& targets, std::string_view module) {
  const auto target = std::ranges::find_if(targets, [&](const Target& at) {
    return at.pattern ? at.pattern->matches(module) : at.text == module;
  });
  return target == targets.end() ? nullptr : &*target;
}

bool is_expression(const std::string& target) {
  return target.starts_with(kExpression);
}

/// The group of routed experts: integrations/compressed_tensors.py:27.
const ConfigGroup& group_of_experts(const std::vector<ConfigGroup>& groups) {
  const auto has = [](const auto& is_wanted) {
    return [&is_wanted](const ConfigGroup& group) {
      return std::ranges::any_of(strings_at(*group.json, "targets"), is_wanted);
    };
  };
  const auto names_experts = [](const std::string& target) {
    return is_expression(target) && target.find("experts") != std::string::npos;
  };
  const auto is_name = [](const std::string& target) { return !is_expression(target); };
  auto group = std::ranges::find_if(groups, has(names_experts));
  if (group == groups.end()) group = std::ranges::find_if(groups, has(is_name));
  return group == groups.end() ? groups.front() : *group;
}

/// The refusal of a target that takes in a module which is neither linear nor an embedding, or
/// empty.
std::string refusal_of_others(const ReaderInput& in, const Targets& targets) {
  std::set<std::string> linear, others = {""};
  for (std::size_t i = 0; i < in.facts.modules.size(); ++i) {
    const BuiltModule& module = in.built_of(i);
    const LinearModule& layer = in.layer(i);
    if (module.kind != BuiltModule::Kind::kExperts &&
        (layer.is_quantizable || is_other_linear(layer)))
      linear.insert(module.name);
  }
  for (const LogicalTensor& tensor : in.checkpoint.tensors()) {
    const bool is_built = !tensor.layer || *tensor.layer < in.checkpoint.config().num_hidden_layers;
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
    const Target* target = named_target(targets, module);
    if (target == nullptr || ignores(in, module)) continue;
    return fmt::format("target '{}' takes in {}, which is no linear layer", target->text,
                       module.empty() ? "the whole model" : "'" + module + "'");
  }
  return {};
}

}  // namespace

// FineGrainedFP8Config of utils/quantization_config.py:1690, and quantizers/auto.py:286.
Reader read_fp8_in_transformers(const ReaderInput& in) {
  if (in.facts.quantization == nullptr) return {};
  const Json& block = in.block();
  const auto refuse = [](std::string why) -> Reader {
    return {.of_all = read_refused(std::move(why))};
  };
  const std::string method = text_at(block, "quant_method");
  if (json_member(block, "quant_method").is_null()) return refuse("no quant_method");
  if (method != "fp8") return {.of_all = read_plain("skips quant_method " + method)};
  if (block.contains("activation_scheme")) {
    const std::string scheme = lower_case(text_at(block, "activation_scheme"));
    if (scheme != "dynamic" && scheme != "static") return refuse("activation_scheme " + scheme);
  }
  const bool has_blocks =
      !block.contains("weight_block_size") || !json_member(block, "weight_block_size").is_null();
  const char* key =
      json_member(block, "modules_to_not_convert").is_null() && block.contains("ignored_layers")
          ? "ignored_layers"
          : "modules_to_not_convert";
  const Json& list = json_member(block, key);
  std::vector<std::string> entries = strings_at(block, key);
  if (list.is_string()) {  // Python takes each letter of it for an entry
    for (const char letter : list.get<std::string>()) entries.emplace_back(1, letter);
  } else if (!list.is_array() && !list.is_null()) {
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
  std::vector<bool> is_left_out;  // by the number of the built module
  for (const BuiltModule& module : in.built.modules()) {
    const auto names = in.aliases(module.name);
    const bool is_left = std::ranges::any_of(left, [&](const LeftOut& entry) {
      return std::ranges::any_of(names, [&](const std::string& name) { return entry.has(name); });
    });
    is_left_out.push_back(is_left);
  }
  return {.of = [=, &in, has_list = !list.is_null(),
                 has_fp4 = has_fp4_experts(in)](std::size_t module) -> Reading {
            if (std::optional<Reading> plain = without_config(in, module)) return *plain;
            const Role role = role_of(*in.layer(module).tensor);
            // Models of transformers keep weights_proj of indexers in F32.
            if (role == Role::kIndexerWeights) return read_plain("always plain");
            if (!has_list && role == Role::kHead) return read_plain("no list");
            if (is_left_out[in.built.module_of(module)]) return read_plain(key);
            if (has_fp4 && in.built_of(module).kind == BuiltModule::Kind::kExperts)
              return read_as(SchemeId::kMxfp4, "expert_dtype");
            return read_as(has_blocks ? SchemeId::kFp8Block : SchemeId::kFp8Tensor,
                           "quant_method fp8");
          },
          .asks = Reader::Asks::kAll};
}

// apply_quantization_config of compressed-tensors, quantization/lifecycle/apply.py:97.
Reader read_groups_in_transformers(const ReaderInput& in) {
  if (!in.facts.groups) return {};
  const std::vector<ConfigGroup>& groups = in.facts.groups->groups();
  if (groups.empty()) return {.of_all = read_refused("no config_groups")};
  std::string refusal;
  // A target that is repeated means the last group that has it.
  std::map<std::string, const ConfigGroup*> of_target;
  for (const ConfigGroup& group : groups) {
    if (!group.has_weights) refusal = fmt::format("config_groups.{} has no weights", group.name);
    for (const std::string& target : strings_at(*group.json, "targets")) of_target[target] = &group;
  }
  Targets targets;
  for (const auto& [text, group] : of_target) {
    Target& target = targets.emplace_back(Target{.text = text, .pattern = {}, .group = group});
    try {
      if (is_expression(text)) target.pattern.emplace(text);
    } catch (const Error&) {
      return {.of_all = read_refused(fmt::format("target '{}' is no expression", text))};
    }
  }
  // utils/match.py:141: names, then expressions, each in order of their text.
  std::ranges::stable_sort(targets, {}, [](const Target& target) {
    return target.text.find(kExpression) != std::string::npos;
  });
  if (std::string of_others = refusal_of_others(in, targets); !of_others.empty())
    refusal = std::move(of_others);
  if (!refusal.empty()) return {.of_all = read_refused(std::move(refusal))};
  return {.of = [&in, targets = std::move(targets),
                 &of_experts = group_of_experts(groups)](std::size_t module) -> Reading {
            if (std::optional<Reading> plain = without_config(in, module)) return *plain;
            const auto of_group = [](const ConfigGroup& group) {
              return read_as(group.scheme, "config_groups." + group.name);
            };
            const BuiltModule& built = in.built_of(module);
            if (built.kind == BuiltModule::Kind::kExperts) {
              // Whatever `ignore` says; experts without scales stay as they are where the group is
              // FP8.
              Reading reading = of_group(of_experts);
              return !in.layer(module).is_quantized && reading.scheme.starts_with("fp8")
                         ? read_plain("no scales")
                         : reading;
            }
            if (ignores(in, built.name) || in.facts.groups->ignores_name(kLinear))
              return read_plain("ignore");
            if (const Target* named = named_target(targets, built.name))
              return of_group(*named->group);
            for (const Target& target : targets)
              if (target.text == kLinear || target.text == "Module") return of_group(*target.group);
            return read_plain("no target matches");
          },
          .asks = Reader::Asks::kAll};
}

}  // namespace ingot::engines
