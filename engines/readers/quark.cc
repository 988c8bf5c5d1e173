#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"

// Configs of AMD's Quark as vLLM 0.32 and SGLang 0.5.23 (quark/quark.py of both) read them. Which
// schemes and activations they take is in their limits.

namespace ingot::engines {

using formats::json_member;
using formats::quark_scheme;
using formats::text_at;

namespace {

/// A config of weights and activations, and where it is.
struct QuarkLayer {
  const Json* json = nullptr;
  std::string because;
};

/// The facts of a config, beside its scheme and kind of activations, that an engine refuses; or
/// empty.
std::string_view other_fault(const Json& layer, bool is_sglang) {
  for (const char* key : {"output_tensors", "bias"}) {
    if (!json_member(layer, key).is_null()) return key;
  }
  const Json &weight = json_member(layer, "weight"), &inputs = json_member(layer, "input_tensors");
  if (!inputs.is_object()) {
    const bool is_fp4 = is_sglang && quark_scheme(weight) == SchemeId::kMxfp4;
    return is_fp4 ? "MXFP4 and no quantized activations" : "";
  }
  const bool is_dynamic = json_member(inputs, "is_dynamic") == true;
  const std::string of_weight = text_at(weight, "qscheme"), of_inputs = text_at(inputs, "qscheme");
  if (of_weight == "per_block") {
    const Json& size = json_member(weight, "block_size");
    if (!size.is_array() || size.size() != 2) return "no block_size";
    const bool is_read = size == Json{128, 128} && of_inputs == "per_group" &&
                         json_member(inputs, "group_size") == 128;
    return is_sglang || is_read ? "" : "blocks or activations of other than 128";
  }
  if (of_weight == "per_group") return {};
  if (!is_dynamic && of_inputs != "per_tensor") return "static activations not per_tensor";
  const bool is_int8 = text_at(weight, "dtype") == "int8";
  return is_int8 && is_dynamic && of_inputs != "per_channel" ? "dynamic activations not per_channel"
                                                             : "";
}

struct QuarkLists {
  std::vector<Pattern> excluded;
  std::vector<std::pair<Pattern, const Json*>> own;  ///< configs of some layers
  const Json* of_all = nullptr;

  [[nodiscard]] bool excludes(const ReaderInput& in, std::string_view name) const {
    const auto names = in.aliases(name);
    return std::ranges::any_of(excluded, [&](const Pattern& entry) {
      return std::ranges::any_of(names, [&](const std::string& called) {
        return entry.text() == called || (entry.text().starts_with("re:") && entry.matches(called));
      });
    });
  }

  [[nodiscard]] QuarkLayer layer_of(const ReaderInput& in, std::string_view name) const {
    const auto names = in.aliases(name);
    for (const auto& [pattern, layer] : own) {
      const std::string& text = pattern.text();
      // vLLM takes a name without a star for the end, or any part, of a longer one.
      const bool is_part = !in.is_sglang() && text.find('*') == std::string::npos;
      if (std::ranges::any_of(names, [&](const std::string& called) {
            return is_part ? text.find(called) != std::string::npos : pattern.matches(called);
          }))
        return {layer, "layer_quant_config." + text};
    }
    return {of_all, "global_quant_config"};
  }
};

Reading quark_module(const ReaderInput& in, const QuarkLists& lists, const BuiltModule& module) {
  if (module.kind == BuiltModule::Kind::kHead) return read_plain("always plain");
  const bool is_of_experts = module.kind == BuiltModule::Kind::kExperts;
  const std::string inside = module.name + ".";
  const auto is_inside = [&](const Pattern& entry) { return entry.text().starts_with(inside); };
  const auto is_excluded = [&](std::string_view name) { return lists.excludes(in, name); };
  if (is_excluded(module.name) || (is_of_experts && std::ranges::any_of(lists.excluded, is_inside)))
    return read_plain("exclude");
  const Listed listed =
      module.has_known_members ? members_listed(module, is_excluded) : Listed::kNo;
  if (listed == Listed::kTorn) return read_partly_listed(module, "exclude");
  if (listed == Listed::kYes) return read_plain("exclude");
  const bool is_joined = module.has_known_members;
  QuarkLayer layer = lists.layer_of(in, is_joined ? module.members.front() : module.name);
  if (is_of_experts && in.is_sglang() && layer.json == lists.of_all) {
    const auto first =
        std::ranges::find_if(lists.own, is_inside, &std::pair<Pattern, const Json*>::first);
    if (first != lists.own.end())
      layer = {first->second, "layer_quant_config." + first->first.text()};
  }
  if (is_joined && std::ranges::any_of(module.members, [&](const std::string& member) {
        return *lists.layer_of(in, member).json != *layer.json;
      }))
    return read_refused("layer_quant_config has several forms of " + module.name);
  const auto scheme = quark_scheme(json_member(*layer.json, "weight"));
  if (!scheme) return read_refused(layer.because + " has a form of weights that it does not know");
  const std::string_view fault = other_fault(*layer.json, in.is_sglang());
  if (!fault.empty()) return read_refused(fmt::format("{} with {}", layer.because, fault));
  return read_as(scheme, layer.because);
}

}  // namespace

Reader read_quark(const ReaderInput& in) {
  if (in.facts.quantization == nullptr) return {};
  const Json& block = in.block();
  if (!json_member(block, "export").is_object()) return {.of_all = read_refused("no export")};
  QuarkLists lists;
  lists.of_all = &json_member(block, "global_quant_config");
  try {
    for (const std::string& entry : formats::strings_at(block, "exclude"))
      lists.excluded.emplace_back(entry);
    const Json& layers = json_member(block, "layer_quant_config");
    if (layers.is_object()) {
      for (const auto& [name, layer] : layers.items()) lists.own.emplace_back(name, &layer);
    }
  } catch (const Error& error) {
    return {.of_all = read_refused(error.what())};
  }
  std::vector<Reading> modules;  // by the number of the built module
  for (const BuiltModule& module : in.built.modules())
    modules.push_back(quark_module(in, lists, module));
  return {.of = [&in, modules = std::move(modules)](std::size_t module) {
    return modules[in.built.module_of(module)];
  }};
}

}  // namespace ingot::engines
