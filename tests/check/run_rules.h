#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/loader_rules.h"
#include "tests/check/rule_fixture.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {

inline bool is_of_engine(std::string_view rule) {
  return rule.starts_with("engine.");
}

/// What all rules find in a checkpoint that is written for it.
inline std::vector<check::Finding> run_all_rules(const EditableCheckpoint& edited,
                                                 const check::RuleOptions& rule_options = {
                                                     .deep = true, .threads = 2}) {
  const TempDir dir;
  edited.write(dir.path());
  ErrorList faults;
  formats::OpenOptions options;
  options.faults = &faults;
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(dir.path(), options);
  return check::run_loader_rules(checkpoint, rule_options);
}

/// The same without what engines make of a sound spelling, which some tests ask for alone.
inline std::vector<check::Finding> run_rules(const EditableCheckpoint& edited,
                                             const check::RuleOptions& rule_options = {
                                                 .deep = true, .threads = 2}) {
  std::vector<check::Finding> findings = run_all_rules(edited, rule_options);
  std::erase_if(findings, [](const check::Finding& finding) { return is_of_engine(finding.rule); });
  return findings;
}

/// A line for each finding.
inline std::string text_of(const std::vector<check::Finding>& findings) {
  std::string text;
  for (const check::Finding& finding : findings) {
    text += std::string(finding.rule) + ": " + finding.file + " " + finding.tensor + " " +
            finding.message + "\n";
  }
  return text;
}

}  // namespace ingot::testing
