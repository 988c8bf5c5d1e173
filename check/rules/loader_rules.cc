#include "check/rules/loader_rules.h"

#include <algorithm>

#include "check/rules/rule_input.h"

namespace ingot::check {

std::span<const LoaderRule> loader_rules() {
  static const std::vector<LoaderRule> rules = [] {
    std::vector<LoaderRule> all;
    for (const RuleTable table :
         {kConfigRules, kCacheScaleRules, kDeepseekRules, kPartRules, kCompressedTensorsRules,
          kModeloptRules, kModelslimRules, kEngineRules, kModelRules})
      all.insert(all.end(), table.begin(), table.end());
    return all;
  }();
  return rules;
}

const LoaderRule* find_loader_rule(std::string_view name) {
  const auto rules = loader_rules();
  const auto row = std::find_if(rules.begin(), rules.end(),
                                [&](const LoaderRule& rule) { return rule.name == name; });
  return row == rules.end() ? nullptr : &*row;
}

bool is_about_layout(const LoaderRule& rule, const formats::Layout& layout) {
  if (!layout.is_sliced || !rule.name.starts_with("engine.")) return true;
  return rule.engine && engines::newest(*rule.engine).word == layout.engine;
}

std::vector<Finding> run_loader_rules(const Checkpoint& checkpoint, const RuleOptions& options) {
  const RuleFacts facts(checkpoint, options.tensor_parallel);
  std::vector<Finding> all;
  for (const LoaderRule& row : loader_rules()) {
    const std::string_view dialect = checkpoint.dialect().name;
    if ((!row.dialect.empty() && row.dialect != dialect) || row.except == dialect) continue;
    if (row.reads_values && !options.values) continue;
    RuleFindings findings;
    row.test({row, checkpoint, options, facts, findings});
    for (Finding& finding : findings.take()) {
      // A tensor that may be in a file that could not be read is not missing.
      if (finding.code == ErrorCode::kMissingTensor && checkpoint.may_have_lost(finding.tensor))
        continue;
      finding.severity = row.severity;
      finding.rule = row.name;
      all.push_back(std::move(finding));
    }
  }
  return all;
}

}  // namespace ingot::check
