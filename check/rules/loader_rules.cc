#include "check/rules/loader_rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "check/rules/rule_input.h"
#include "engines/verdicts.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/json/json.h"

namespace ingot::check {

using engines::Engine;
using formats::Json;

namespace {

void run_row(const RuleInput& input) {
  if (const auto* of_checkpoint = std::get_if<0>(&input.row.test);
      of_checkpoint != nullptr && *of_checkpoint != kByStructure)
    (*of_checkpoint)(input);
  if (const auto* of_weight = std::get_if<1>(&input.row.test)) {
    for (const LogicalTensor& tensor : input.weights()) {
      if (input.is_about(tensor.encoding.scheme)) (*of_weight)(input, tensor);
    }
  }
  if (const auto* of_module = std::get_if<2>(&input.row.test)) {
    for (const LinearModule& module : input.facts.modules) (*of_module)(input, module);
  }
}

}  // namespace

std::span<const LoaderRule> loader_rules() {
  static const std::vector<LoaderRule> rules = [] {
    std::vector<LoaderRule> all;
    for (const RuleTable table :
         {kConfigRules, kStartupRules, kCacheScaleRules, kDeepseekRules, kPartRules,
          kCompressedTensorsRules, kModeloptRules, kModelslimRules, kEngineRules, kModelRules})
      all.insert(all.end(), table.begin(), table.end());
    return all;
  }();
  return rules;
}

const LoaderRule* find_loader_rule(std::string_view name) {
  const auto rules = loader_rules();
  const auto row = std::ranges::find(rules, name, &LoaderRule::name);
  return row == rules.end() ? nullptr : &*row;
}

Json fault_json(const Finding& finding) {
  // A name as it is, escaped where JSON cannot hold it.
  const auto or_null = [](const std::string& name) {
    return name.empty() ? Json() : Json(is_utf8(name) ? name : printable(name));
  };
  Json json = {{"code", error_code_name(finding.code)},
               {"file", or_null(finding.file)},
               {"tensor", or_null(finding.tensor)},
               {"message", finding.message}};
  if (!finding.rule.empty()) json["rule"] = finding.rule;
  if (const LoaderRule* rule = find_loader_rule(finding.rule)) json["loaders"] = rule->loaders;
  return json;
}

Json faults_json(std::span<const Finding> findings, Severity severity, std::size_t most) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    if (finding.severity == severity && list.size() < most) list.push_back(fault_json(finding));
  }
  return list;
}

Json remarks_json(const std::vector<std::string>& remarks, std::string_view file) {
  return formats::json_list(
      remarks, [&](const std::string& text) { return fault_json(remark(text, file)); });
}

bool is_about_layout(const LoaderRule& rule, const formats::Layout& layout) {
  if (!layout.is_sliced || !rule.name.starts_with("engine.")) return true;
  return rule.engine && engines::newest(*rule.engine).word == layout.engine;
}

LoaderRules::LoaderRules(const Checkpoint& checkpoint, RuleOptions options)
    : checkpoint_(checkpoint), options_(std::move(options)) {}

LoaderRules::~LoaderRules() = default;

const RuleFacts& LoaderRules::facts() {
  if (!facts_) facts_ = std::make_unique<RuleFacts>(checkpoint_, options_.tensor_parallel);
  return *facts_;
}

const engines::EngineInput& LoaderRules::engine_input() {
  return facts();
}

Unread LoaderRules::unread() {
  Unread unread;
  for (const StoredTensor* tensor : facts().unread) {
    ++unread.n_tensors;
    unread.n_bytes += tensor->n_bytes;
  }
  return unread;
}

std::vector<Finding> LoaderRules::run() {
  std::vector<Finding> all;
  for (const LoaderRule& row : loader_rules()) {
    for (Finding& finding : run(row)) all.push_back(std::move(finding));
  }
  return all;
}

std::vector<Finding> LoaderRules::run(const LoaderRule& row) {
  const std::string_view dialect = checkpoint_.dialect().name;
  const bool is_of_another = !row.dialect.empty() && row.dialect != dialect;
  if (is_of_another || row.except == dialect || (row.reads_values && options_.most_bytes == 0))
    return {};
  Findings findings;
  run_row({row, checkpoint_, options_, facts(), findings});
  std::vector<Finding> found = findings.take();
  // A tensor that may be in a file that could not be read is not missing.
  std::erase_if(found, [&](const Finding& finding) {
    return finding.code == ErrorCode::kMissingTensor && checkpoint_.may_have_lost(finding.tensor);
  });
  for (Finding& finding : found) {
    finding.severity = row.severity;
    finding.rule = row.name;
  }
  return found;
}

std::vector<Finding> run_loader_rules(const Checkpoint& checkpoint, const RuleOptions& options) {
  return LoaderRules(checkpoint, options).run();
}

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

void keep_misread(const std::set<std::string, std::less<>>& misread,
                  std::vector<Finding>& findings) {
  constexpr std::array<std::string_view, 7> kOfLists = {"fp8.weight-quantized",
                                                        "int8-block.weight-quantized",
                                                        "native.ignored-quantized",
                                                        "ct.targets",
                                                        "ct.ignore",
                                                        "modelopt.exclude-plain",
                                                        "modelopt.exclude-quantized"};
  std::erase_if(findings, [&](const Finding& finding) {
    return is_in(kOfLists, finding.rule) && !finding.tensor.empty() &&
           !misread.contains(finding.tensor);
  });
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
    const LoaderRule* rule = find_loader_rule(error->rule);
    verdict.loads = false;
    verdict.is_silent = rule != nullptr && rule->is_silent;
    verdict.tensor = error->tensor;
    verdict.reason = error->message;
    if (!error->rule.empty()) verdict.reason += fmt::format(" (loader rule {})", error->rule);
    if (error->tensor.empty() && !error->file.empty())
      verdict.reason = fmt::format("{}: {}", error->file, verdict.reason);
  }
}

}  // namespace ingot::check
