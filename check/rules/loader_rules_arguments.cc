#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "check/rules/linear_modules.h"
#include "check/rules/loader_rule_bodies.h"
#include "check/rules/loader_targets.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/modelopt_algos.h"

// The arguments of quantization: what compressed-tensors' groups and ModelOpt's blocks say of
// weights and activations beyond naming a scheme.

namespace ingot::formats::rule_bodies {
namespace {

bool is_group_strategy(const Json& strategy) {
  return strategy == "group" || strategy == "tensor_group";
}

/// Arguments with the defaults that compressed-tensors gives to absent ones.
Json arguments_of(const Json& given) {
  const auto or_else = [&](const char* key, Json absent) {
    const Json& value = config_member(given, key);
    return value.is_null() ? std::move(absent) : value;
  };
  const Json strategy = or_else("strategy", "tensor");
  return {{"num_bits", or_else("num_bits", 8)},
          {"type", or_else("type", "int")},
          {"strategy", strategy},
          {"group_size", is_group_strategy(strategy) ? or_else("group_size", nullptr) : Json()},
          {"symmetric", or_else("symmetric", true)},
          {"dynamic", or_else("dynamic", false)}};
}

/// What loaders of a group's weights can do with activations.
std::vector<Json> known_activations(const QuantizationGroup& group) {
  std::vector<Json> known;
  for (const Activations activations : {Activations::kDynamic, Activations::kStatic}) {
    QuantizationGroup with = group;
    with.activations = activations;
    try {
      known.push_back(arguments_of(config_group(with, {}).at("input_activations")));
    } catch (const Error&) {  // a kind that the scheme does not go with
    }
  }
  // What is found at run time, loaders of FP8 find in their own way, whatever the strategy.
  if (scheme_facts(group.scheme).code == CodeKind::kE4m3 && group.scheme != SchemeId::kMxfp8) {
    for (const char* strategy : {"token", "tensor"}) {
      Json other = known.front();
      other["strategy"] = strategy;
      other["group_size"] = nullptr;
      known.push_back(std::move(other));
    }
  }
  return known;
}

std::array<std::uint64_t, 2> block_of_weights(const Json& weights) {
  const Json& sides = config_member(weights, "block_structure");
  if (!sides.is_array() || sides.size() != 2) return {0, 0};
  if (!sides[0].is_number_unsigned() || !sides[1].is_number_unsigned()) return {0, 0};
  return {sides[0].get<std::uint64_t>(), sides[1].get<std::uint64_t>()};
}

/// Calls visit(path, group, scheme) for the groups that some module is quantized by; where a module
/// is of another scheme, ct.targets says so.
template <typename Visit>
void for_each_group(const Checkpoint& checkpoint, const Visit& visit) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const LoaderTargets targets(*block);
  std::map<std::string, SchemeId> used;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (!module.is_quantized || targets.ignores(module.name)) continue;
    const TargetGroup* group = targets.group_of(module.name);
    if (group != nullptr && group->scheme == module.tensor->encoding.scheme)
      used.emplace(group->name, *group->scheme);
  }
  for (const auto& [name, scheme] : used) {
    visit(fmt::format("config_groups.{}", name),
          config_member(config_member(*block, "config_groups"), name), scheme);
  }
}

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == -1 ||
         (value.is_structured() && value.empty());
}

std::string_view scale_dtype_of(SchemeId scheme) {
  switch (scheme) {
    case SchemeId::kNvfp4:
      return "float8_e4m3fn";
    case SchemeId::kMxfp4:
    case SchemeId::kMxfp8:
      return "uint8";
    default:
      return {};
  }
}

// As a word, with or without its module: torch.uint8.
bool is_scale_dtype(const Json& said, SchemeId scheme) {
  if (!said.is_string()) return false;
  std::string_view word = said.get_ref<const std::string&>();
  if (word.starts_with("torch.")) word.remove_prefix(6);
  const std::string_view wanted = scale_dtype_of(scheme);
  if (wanted.empty()) return word.starts_with("float") || word == "bfloat16";
  return word == wanted || (wanted == "uint8" && word == "float8_e8m0fnu");
}

/// What describes the weights of a ModelOpt checkpoint: the file, and config.json's block.
struct Statements {
  const Json* file = nullptr;
  const Json* block = nullptr;
};

Statements statements_of(const Checkpoint& checkpoint) {
  Statements found{.block = config_block(checkpoint)};
  const Json& inner = config_member(checkpoint.description(), "quantization");
  if (inner.is_object()) found.file = &inner;
  return found;
}

Finding in_file(bool is_block, ErrorCode code, std::string message) {
  return violation(code, is_block ? "config.json" : "hf_quant_config.json", "", std::move(message));
}

ModuleList globs(const Json& statement, const char* key) {
  std::vector<std::string> entries = strings_at(statement, key);
  std::erase_if(entries, [](const std::string& entry) { return entry.empty(); });
  return {entries, PatternSyntax::kGlob};
}

void judge_modelopt_group(const Json& group, const ModeloptAlgo& algo, const std::string& where,
                          const Report& report) {
  const auto require = [&](const char* owner, const char* key, const Json& wanted) {
    const Json& value = config_member(config_member(group, owner), key);
    if (value.is_null() || value == wanted) return;
    report(in_config(ErrorCode::kMismatch,
                     fmt::format("{}.{}.{} is {}, but quant_algo {} means {}", where, owner, key,
                                 config_text(value), algo.name, config_text(wanted))));
  };
  for (const char* owner : {"weights", "input_activations"}) {
    require(owner, "num_bits", scheme_facts(algo.scheme).code_bits);
    require(owner, "type", "float");
    require(owner, "symmetric", true);
    if (algo.group_size != 0) require(owner, "group_size", algo.group_size);
  }
  require("weights", "dynamic", false);
  require("input_activations", "dynamic", algo.activations == Activations::kDynamic);
  const bool has_inputs = config_member(group, "input_activations").is_object();
  if (has_inputs == (algo.activations != Activations::kWeightOnly)) return;
  report(in_config(
      ErrorCode::kMismatch,
      fmt::format("{} has {} input_activations, but quant_algo {} {} them", where,
                  has_inputs ? "" : "no", algo.name, has_inputs ? "leaves out" : "quantizes")));
}

}  // namespace

void ct_activations(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for_each_group(checkpoint, [&](const std::string& where, const Json& group, SchemeId scheme) {
    const Json& given = config_member(group, "input_activations");
    if (!given.is_object()) return;
    const Json wanted = arguments_of(given);
    const std::vector<Json> known = known_activations(
        {.scheme = scheme, .block = block_of_weights(config_member(group, "weights"))});
    if (std::find(known.begin(), known.end(), wanted) != known.end()) return;
    std::string differs;
    for (const auto& [key, value] : wanted.items()) {
      const bool is_usual = std::any_of(known.begin(), known.end(),
                                        [&](const Json& one) { return one.at(key) == value; });
      if (!is_usual) differs += fmt::format(" {} {}", key, config_text(value));
    }
    report(in_config(ErrorCode::kMismatch,
                     fmt::format("{}.input_activations: no loader of {} computes so ({})", where,
                                 scheme_facts(scheme).name,
                                 differs.empty() ? wanted.dump() : differs.substr(1))));
  });
}

void ct_arguments(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for_each_group(checkpoint, [&](const std::string& where, const Json& group, SchemeId scheme) {
    const Json& weights = config_member(group, "weights");
    const auto refuse = [&](std::string_view key, const Json& value) {
      report(in_config(ErrorCode::kMismatch,
                       fmt::format("{}.{} is {}, which {} does not have", where, key,
                                   config_text(value), scheme_facts(scheme).name)));
    };
    const Json& dynamic = config_member(weights, "dynamic");
    if (!is_nothing(dynamic)) refuse("weights.dynamic", dynamic);
    // An order of columns that needs no table of them ("weight", "static") is the writer's affair.
    const Json& order = config_member(weights, "actorder");
    if (order == "group" || order == "dynamic" || order == true) refuse("weights.actorder", order);
    const Json& strategy = config_member(weights, "strategy");
    const Json& size = config_member(weights, "group_size");
    if (!is_group_strategy(strategy) && !is_nothing(size)) refuse("weights.group_size", size);
    const Json& sides = config_member(weights, "block_structure");
    if (scheme != SchemeId::kFp8Block && !is_nothing(sides))
      refuse("weights.block_structure", sides);
    const Json& dtype = config_member(weights, "scale_dtype");
    if (!dtype.is_null() && !is_scale_dtype(dtype, scheme)) refuse("weights.scale_dtype", dtype);
    const Json& outputs = config_member(group, "output_activations");
    if (!is_nothing(outputs)) refuse("output_activations", outputs);
  });
}

void ct_transforms(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const Json& value = config_member(*block, key);
    if (is_nothing(value) || config_member(value, "format") == "dense") continue;
    // A transform without groups transforms nothing.
    const Json& groups = config_member(value, "config_groups");
    if (groups.is_object() && groups.empty()) continue;
    report(in_config(ErrorCode::kUnsupported,
                     fmt::format("quantization_config.{} is {}: loaders would change the weights",
                                 key, config_text(value))));
  }
}

void modelopt_arguments(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Statements found = statements_of(checkpoint);
  for (const Json* statement : {found.file, found.block}) {
    if (statement == nullptr) continue;
    const bool is_block = statement == found.block;
    for (const char* key : {"has_zero_point", "pre_quant_scale"}) {
      const Json& value = config_member(*statement, key);
      if (is_nothing(value)) continue;
      report(
          in_file(is_block, ErrorCode::kMismatch,
                  fmt::format("{} is {}, but there are no such tensors", key, config_text(value))));
    }
    const Json& name = config_member(*statement, "quant_algo");
    const ModeloptAlgo* algo =
        name.is_string() ? find_modelopt_algo(name.get_ref<const std::string&>()) : nullptr;
    if (algo == nullptr) continue;
    const Json& size = config_member(*statement, "group_size");
    if (!is_nothing(size) && size != algo->group_size) {
      report(in_file(is_block, ErrorCode::kMismatch,
                     fmt::format("group_size is {}, but quant_algo {} means {}", config_text(size),
                                 algo->name, algo->group_size)));
    }
    const Json& groups = config_member(*statement, "config_groups");
    if (!groups.is_object()) continue;
    for (const auto& [group_name, group] : groups.items())
      judge_modelopt_group(group, *algo, fmt::format("config_groups.{}", group_name), report);
  }
}

void modelopt_statements_agree(const Checkpoint& checkpoint, const RuleOptions&,
                               const Report& report) {
  const Statements found = statements_of(checkpoint);
  if (found.file == nullptr || found.block == nullptr) return;
  const auto differ = [&](const char* in_block, const char* in_file_key) {
    report(
        in_config(ErrorCode::kMismatch,
                  fmt::format("quantization_config.{} is {}, but {} in hf_quant_config.json is "
                              "{}: engines read one or the other",
                              in_block, config_text(config_member(*found.block, in_block)),
                              in_file_key, config_text(config_member(*found.file, in_file_key)))));
  };
  for (const char* key : {"quant_algo", "group_size"}) {
    const Json& a = config_member(*found.block, key);
    const Json& b = config_member(*found.file, key);
    if (!a.is_null() && !b.is_null() && a != b) differ(key, key);
  }
  const bool cache_in_block = !config_member(*found.block, "kv_cache_scheme").is_null();
  const bool cache_in_file = !config_member(*found.file, "kv_cache_quant_algo").is_null();
  if (cache_in_block != cache_in_file) differ("kv_cache_scheme", "kv_cache_quant_algo");
  if (!found.block->contains("ignore") || !found.file->contains("exclude_modules")) return;
  const ModuleList of_block = globs(*found.block, "ignore");
  const ModuleList of_file = globs(*found.file, "exclude_modules");
  FindingsByKind modules;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    const bool is_in_block = of_block.covers_for_all(module.name);
    if (is_in_block == of_file.covers_for_all(module.name)) continue;
    modules.add(module.tensor->rule,
                at(checkpoint, codes_of(checkpoint, *module.tensor), ErrorCode::kMismatch,
                   fmt::format("is left out by {} alone: engines read config.json's ignore or "
                               "hf_quant_config.json's exclude_modules",
                               is_in_block ? "config.json" : "hf_quant_config.json")));
  }
  modules.report(report);
}

}  // namespace ingot::formats::rule_bodies
