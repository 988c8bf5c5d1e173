#include <functional>
#include <set>

#include "check/rules/rule_input.h"
#include "engines/readers/reader.h"
#include "formats/dialect/dialect_words.h"

// Lists of a config as the readers of engines understand them, against what is stored. The rows are
// with those of the dialects.

namespace ingot::check {

using engines::Engine;
using engines::Reader;
using engines::Reading;

namespace {

Reader reader_of(const RuleInput& input, Engine engine, bool has_draft_names = true) {
  return engines::reader_of(input.checkpoint, input.facts, engines::newest(engine),
                            has_draft_names);
}

/// The reading of a module; nullopt where it is what is stored.
std::optional<Reading> misread(const RuleInput& input, const Reader& reader, std::size_t i) {
  Reading reading = reader.of(i);
  if (reading.scheme == engines::stored_scheme(input.facts.modules[i])) return std::nullopt;
  return reading;
}

/// Calls visit(module, reading) for the modules, of those that `is_about`, that the engine reads as
/// something else than is stored.
template <typename IsAbout, typename Visit>
void for_each_misread(const RuleInput& input, Engine engine, const IsAbout& is_about,
                      const Visit& visit) {
  const Reader reader = reader_of(input, engine);
  for (std::size_t i = 0; i < input.facts.modules.size(); ++i) {
    const LinearModule& module = input.facts.modules[i];
    if (!is_about(module)) continue;
    if (const auto reading = misread(input, reader, i)) visit(module, *reading);
  }
}

}  // namespace

template <Engine engine>
void draft_names(const RuleInput& input) {
  if (input.dialect().is_read_only || !engines::reads_config(input.dialect(), engine) ||
      input.checkpoint.slicing() != nullptr)
    return;
  const Reader by_stored_name = reader_of(input, engine, false);
  const auto name_of = [](const LinearModule& module) {
    return engine == Engine::kVllm ? module.mtp_name : module.draft_name;
  };
  const auto has_name = [&](const LinearModule& module) {
    const auto i = static_cast<std::size_t>(&module - input.facts.modules.data());
    // A fault under the stored name has been reported.
    return !name_of(module).empty() && !misread(input, by_stored_name, i);
  };
  for_each_misread(
      input, engine, has_name, [&](const LinearModule& module, const Reading& reading) {
        input.report_kind(*module.tensor, kMismatch,
                          "is {}, and {}, which calls it '{}' for speculative decoding, takes it "
                          "for {} ({}; list both names)",
                          engines::stored_scheme(module), engines::newest(engine).name,
                          name_of(module), reading.scheme, reading.because);
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
      input, Engine::kVllm, is_plain, [&](const LinearModule& module, const Reading& reading) {
        if (!reading.is_refused())
          input.report_kind(*module.tensor, kMismatch,
                            "is plain, but vLLM builds it with the quantization config: it would "
                            "become FP8 under a scale that is not loaded (list its module in "
                            "modules_to_not_convert)");
      });
}

void block_target(const RuleInput& input) {
  if (input.checkpoint.slicing() != nullptr) return;
  for_each_misread(input, Engine::kSglang, std::mem_fn(&LinearModule::is_quantized),
                   [&](const LinearModule& module, const Reading& reading) {
                     if (reading.because.find("target \"Linear\"") != std::string::npos)
                       input.report_kind(*module.tensor, kMismatch, "is {}, and {} refuses it: {}",
                                         facts_of(*module.tensor).name,
                                         engines::newest(Engine::kSglang).name, reading.because);
                   });
}

void head_listed(const RuleInput& input) {
  if (strings_at(input.block(), formats::kModulesToNotConvert).empty()) return;
  const auto is_plain_head = [](const LinearModule& module) {
    return role_of(*module.tensor) == Role::kHead && !module.is_quantized;
  };
  for_each_misread(input, Engine::kTransformers, is_plain_head,
                   [&](const LinearModule& module, const Reading&) {
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
  std::set<std::string> partly_listed;  // modules that the rule fused.scheme judges
  for (const LinearModule& module : input.facts.modules) {
    if (!module.is_quantized) partly_listed.insert(name_of(module));
  }
  const auto is_listed = [](const Reading& reading) {
    return reading.because.find(formats::kIgnoredLayers) != std::string::npos ||
           reading.because.find(formats::kModulesToNotConvert) != std::string::npos;
  };
  for (const Engine engine : {Engine::kVllm, Engine::kSglang, Engine::kTransformers}) {
    for_each_misread(
        input, engine, std::mem_fn(&LinearModule::is_quantized),
        [&](const LinearModule& module, const Reading& reading) {
          // Each other reason has a rule of its own.
          if (!is_listed(reading) ||
              (!reading.is_plain() && partly_listed.contains(name_of(module))))
            return;
          if (reading.is_plain())
            input.report_kind(*module.tensor, kMismatch,
                              "is {}, but {} names it: loaders take the codes for numbers",
                              facts_of(*module.tensor).name, reading.because);
          else
            input.report_kind(*module.tensor, kMismatch, "is {}, but {}, which loaders refuse",
                              facts_of(*module.tensor).name, reading.because);
        });
  }
}

}  // namespace ingot::check
