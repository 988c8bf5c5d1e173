#include "check/engine_findings.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::check {

using engines::Engine;

namespace {

bool names_engine(std::string_view loaders, Engine engine) {
  if (loaders == "all" || loaders == "one reader or another") return true;
  // vLLM-Ascend is vLLM's loader with kernels of its own: the first word names the loader.
  const std::string_view name = engines::newest(engine).name;
  return loaders.find(name.substr(0, name.find_first_of(" -"))) != std::string_view::npos;
}

// The option with which the engine takes what breaks the rule; empty: it does with none.
std::string_view option_of(const LoaderRule* rule, Engine engine) {
  return rule == nullptr || rule->option == nullptr ? "" : engines::newest(engine).*rule->option;
}

}  // namespace

std::vector<Finding> findings_for(Engine engine, std::span<const Finding> findings) {
  std::vector<Finding> own;
  for (const Finding& finding : findings) {
    const LoaderRule* rule = find_loader_rule(finding.rule);
    if (rule != nullptr && rule->engine && *rule->engine != engine) continue;
    if (rule != nullptr && !rule->engine && !names_engine(rule->loaders, engine)) continue;
    own.push_back(finding);
    if (rule != nullptr && rule->is_allowable && rule->severity == Severity::kWarning &&
        option_of(rule, engine).empty())
      own.back().severity = Severity::kError;
  }
  return own;
}

void deny_by_errors(std::span<const Finding> findings,
                    std::vector<engines::EngineVerdict>& verdicts) {
  for (engines::EngineVerdict& verdict : verdicts) {
    if (!verdict.loads) continue;
    const std::vector<Finding> own = findings_for(verdict.engine->engine, findings);
    for (const Finding& finding : own) {
      const std::string_view option =
          option_of(find_loader_rule(finding.rule), verdict.engine->engine);
      if (!option.empty() && std::ranges::find(verdict.options, option) == verdict.options.end())
        verdict.options.emplace_back(option);
    }
    const auto error = std::ranges::find(own, Severity::kError, &Finding::severity);
    if (error == own.end()) continue;
    verdict.loads = false;
    verdict.tensor = error->tensor;
    verdict.reason = error->message;
    if (!error->rule.empty()) verdict.reason += fmt::format(" (loader rule {})", error->rule);
    if (error->tensor.empty() && !error->file.empty())
      verdict.reason = fmt::format("{}: {}", error->file, verdict.reason);
  }
}

}  // namespace ingot::check
