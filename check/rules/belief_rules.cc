#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "check/rules/rule_input.h"
#include "engines/readers/config_reader.h"
#include "formats/dialect/deepseek.h"
#include "formats/json/json.h"

// Lists of a config as the readers of engines understand them, against what is stored. The rows are
// with those of the dialects.

namespace ingot::check {

using engines::Belief;
using engines::ConfigReader;
using engines::Engine;

namespace {

constexpr std::string_view kPlain = "plain";

/// The belief of a module; nullopt where it is what is stored.
std::optional<Belief> misread(const RuleInput& input, const ConfigReader& reader, std::size_t i) {
  Belief belief = reader.belief(i);
  if (belief.scheme == engines::stored_scheme(input.facts.modules[i])) return std::nullopt;
  return belief;
}

ConfigReader reader_of(const RuleInput& input, Engine engine, bool has_draft_names = true) {
  return {input.checkpoint, input.facts, engines::newest(engine), has_draft_names};
}

}  // namespace

template <Engine engine>
void draft_names(const RuleInput& input) {
  if (input.dialect().is_read_only || input.checkpoint.slicing() != nullptr) return;
  const ConfigReader reader = reader_of(input, engine);
  const ConfigReader by_stored_name = reader_of(input, engine, false);
  for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
    const LinearModule& module = input.facts.modules[i];
    const std::string& name = engine == Engine::kVllm ? module.mtp_name : module.draft_name;
    // A fault under the stored name has been reported.
    if (name.empty() || misread(input, by_stored_name, i)) continue;
    const std::optional<Belief> belief = misread(input, reader, i);
    if (!belief) continue;
    input.report_kind(
        *module.tensor, ErrorCode::kMismatch,
        fmt::format("is {}, and {}, which calls it '{}' for speculative decoding, takes it for {} "
                    "({}; list both names)",
                    engines::stored_scheme(module), engines::newest(engine).name, name,
                    belief->scheme, belief->because));
  }
}

template void draft_names<Engine::kVllm>(const RuleInput& input);
template void draft_names<Engine::kSglang>(const RuleInput& input);

void silent_module(const RuleInput& input) {
  const ConfigReader reader = reader_of(input, Engine::kVllm);
  for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
    const LogicalTensor& tensor = *input.facts.modules[i].tensor;
    // The rule fp8.weight-quantized is about those that a release quantizes.
    if (tensor.rule == nullptr || tensor.rule->fp8_by_default || is_quantized(tensor)) continue;
    const std::optional<Belief> belief = misread(input, reader, i);
    if (!belief || belief->scheme == "refused") continue;
    input.report_kind(tensor, ErrorCode::kMismatch,
                      "is plain, but vLLM builds it with the quantization config: it would become "
                      "FP8 under a scale that is not loaded (list its module in "
                      "modules_to_not_convert)");
  }
}

void head_listed(const RuleInput& input) {
  const Json* block = input.facts.quantization;
  if (block == nullptr || strings_at(*block, formats::kModulesToNotConvert).empty()) return;
  const ConfigReader reader = reader_of(input, Engine::kTransformers);
  for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
    const LinearModule& module = input.facts.modules[i];
    if (role_of(*module.tensor) != Role::kHead || module.is_quantized || !misread(input, reader, i))
      continue;
    input.report_at(input.codes_of(*module.tensor), ErrorCode::kMismatch,
                    fmt::format("is not in {}, and transformers leaves it plain by itself only "
                                "where there is no list (list {})",
                                formats::kModulesToNotConvert, module.name));
  }
}

void ignored_quantized(const RuleInput& input) {
  const auto name_of = [](const LinearModule& module) {
    return formats::joined_module(module.tensor->name, module.tensor->rule,
                                  formats::ExpertJoin::kMatrix);
  };
  std::set<std::string> torn;  // the rule fused.scheme is about these
  for (const LinearModule& module : input.facts.modules) {
    if (!module.is_quantized) torn.insert(name_of(module));
  }
  for (const Engine engine : {Engine::kVllm, Engine::kSglang, Engine::kTransformers}) {
    const ConfigReader reader = reader_of(input, engine);
    for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
      const LinearModule& module = input.facts.modules[i];
      const std::optional<Belief> belief =
          module.is_quantized ? misread(input, reader, i) : std::nullopt;
      // Other reasons have rules of their own.
      const bool is_listed =
          belief && (belief->scheme == kPlain || !torn.contains(name_of(module))) &&
          std::ranges::any_of(std::array{formats::kIgnoredLayers, formats::kModulesToNotConvert},
                              [&](const char* key) { return belief->because.starts_with(key); });
      if (!is_listed) continue;
      input.report_kind(*module.tensor, ErrorCode::kMismatch,
                        fmt::format("is {}, but {} finds it in {} and takes the codes for numbers",
                                    facts_of(*module.tensor).name, engines::newest(engine).name,
                                    belief->because));
    }
  }
}

}  // namespace ingot::check
