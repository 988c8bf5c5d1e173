#include <functional>
#include <set>

#include "check/rules/rule_input.h"
#include "engines/readers/config_reader.h"
#include "formats/dialect/deepseek.h"

// Lists of a config as the readers of engines understand them, against what is stored. The rows are
// with those of the dialects.

namespace ingot::check {

using engines::Belief;
using engines::ConfigReader;
using engines::Engine;

namespace {

ConfigReader reader_of(const RuleInput& input, Engine engine, bool has_draft_names = true) {
  return {input.checkpoint, input.facts, engines::newest(engine), has_draft_names};
}

/// The belief of a module; nullopt where it is what is stored.
std::optional<Belief> misread(const RuleInput& input, const ConfigReader& reader, std::size_t i) {
  Belief belief = reader.belief(i);
  if (belief.scheme == engines::stored_scheme(input.facts.modules[i])) return std::nullopt;
  return belief;
}

/// Calls visit(module, belief) for the modules, of those that `is_about`, of which the engine
/// believes something else than is stored.
template <typename IsAbout, typename Visit>
void for_each_misread(const RuleInput& input, Engine engine, const IsAbout& is_about,
                      const Visit& visit) {
  const ConfigReader reader = reader_of(input, engine);
  for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
    const LinearModule& module = input.facts.modules[i];
    if (!is_about(module)) continue;
    if (const auto belief = misread(input, reader, i)) visit(module, *belief);
  }
}

}  // namespace

template <Engine engine>
void draft_names(const RuleInput& input) {
  if (input.dialect().is_read_only || input.checkpoint.slicing() != nullptr) return;
  const ConfigReader by_stored_name = reader_of(input, engine, false);
  const auto name_of = [](const LinearModule& module) {
    return engine == Engine::kVllm ? module.mtp_name : module.draft_name;
  };
  const auto has_name = [&](const LinearModule& module) {
    const auto i = static_cast<std::size_t>(&module - input.facts.modules.data());
    // A fault under the stored name has been reported.
    return !name_of(module).empty() && !misread(input, by_stored_name, i);
  };
  for_each_misread(input, engine, has_name, [&](const LinearModule& module, const Belief& belief) {
    input.report_kind(*module.tensor, kMismatch,
                      "is {}, and {}, which calls it '{}' for speculative decoding, takes it "
                      "for {} ({}; list both names)",
                      engines::stored_scheme(module), engines::newest(engine).name, name_of(module),
                      belief.scheme, belief.because);
  });
}

template void draft_names<Engine::kVllm>(const RuleInput& input);
template void draft_names<Engine::kSglang>(const RuleInput& input);

void silent_module(const RuleInput& input) {
  // The rule fp8.weight-quantized is about those that a release quantizes.
  const auto is_plain = [](const LinearModule& module) {
    const TensorRule* rule = module.tensor->rule;
    return rule != nullptr && !rule->fp8_by_default && !module.is_quantized && !module.is_nameless;
  };
  for_each_misread(
      input, Engine::kVllm, is_plain, [&](const LinearModule& module, const Belief& belief) {
        if (belief.scheme != "refused")
          input.report_kind(*module.tensor, kMismatch,
                            "is plain, but vLLM builds it with the quantization config: it would "
                            "become FP8 under a scale that is not loaded (list its module in "
                            "modules_to_not_convert)");
      });
}

void block_target(const RuleInput& input) {
  if (input.checkpoint.slicing() != nullptr) return;
  for_each_misread(input, Engine::kSglang, std::mem_fn(&LinearModule::is_quantized),
                   [&](const LinearModule& module, const Belief& belief) {
                     if (belief.because.find("target \"Linear\"") != std::string::npos)
                       input.report_kind(*module.tensor, kMismatch, "is {}, and {} refuses it: {}",
                                         facts_of(*module.tensor).name,
                                         engines::newest(Engine::kSglang).name, belief.because);
                   });
}

void head_listed(const RuleInput& input) {
  if (strings_at(input.block(), formats::kModulesToNotConvert).empty()) return;
  const auto is_plain_head = [](const LinearModule& module) {
    return role_of(*module.tensor) == Role::kHead && !module.is_quantized;
  };
  for_each_misread(input, Engine::kTransformers, is_plain_head,
                   [&](const LinearModule& module, const Belief&) {
                     input.report_at(input.codes_of(*module.tensor), kMismatch,
                                     "is not in {}, and transformers leaves it plain by itself "
                                     "only where there is no list (list {})",
                                     formats::kModulesToNotConvert, module.name);
                   });
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
    for_each_misread(
        input, engine, std::mem_fn(&LinearModule::is_quantized),
        [&](const LinearModule& module, const Belief& belief) {
          // Other reasons have rules of their own.
          const bool is_listed = belief.because.starts_with(formats::kIgnoredLayers) ||
                                 belief.because.starts_with(formats::kModulesToNotConvert);
          if (is_listed && (belief.scheme == "plain" || !torn.contains(name_of(module))))
            input.report_kind(*module.tensor, kMismatch,
                              "is {}, but {} finds it in {} and takes the codes for numbers",
                              facts_of(*module.tensor).name, engines::newest(engine).name,
                              belief.because);
        });
  }
}

}  // namespace ingot::check
