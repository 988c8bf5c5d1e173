#include "tests/verify/mutations/verdict.h"

#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "verify/gates/report.h"

namespace ingot::testing {

namespace {

// The default gates over the structure.
verify::Report compare_structure(const verify::ComparedCheckpoint& before,
                                 const std::filesystem::path& output) {
  verify::Report report;
  report.structure = verify::check_structure(before, output, {});
  report.gates = verify::judge(report, verify::default_thresholds(""));
  return report;
}

// The default gates over the default levels, as `ingot verify SOURCE OUTPUT` has them.
void compare_weights(const verify::ComparedCheckpoint& before, const std::filesystem::path& output,
                     verify::Report& report) {
  std::string search;
  try {
    const verify::ComparedCheckpoint after = verify::open_compared(output, {});
    const verify::Wanted wanted = verify::wanted_of(after.manifest);
    search = wanted.search;
    report.weights = verify::compare_weights(before.model, after.model, {.wanted = wanted});
  } catch (const Error& error) {
    report.not_run.push_back(fmt::format("weights: {}", error.what()));
  }
  report.gates = verify::judge(report, verify::default_thresholds(search));
}

Verdict verdict_on(const verify::Report& report) {
  Verdict verdict{.passed = report.passed(), .text = {}};
  if (verdict.passed) return verdict;
  for (const check::Finding& finding : report.structure->findings) {
    if (finding.severity != check::Severity::kError) continue;
    verdict.text += fmt::format("[{}] {}: {}: {}\n", finding.rule, finding.file, finding.tensor,
                                finding.message);
  }
  for (const std::string& level : report.not_run) verdict.text += level + "\n";
  for (const verify::GateResult& gate : report.gates) {
    if (!gate.passed)
      verdict.text +=
          fmt::format("{}[{}] {}: {} of {} failed, worst {}\n", gate.gate.metric, gate.gate.group,
                      gate.worst, gate.failed, gate.checked, gate.subject);
  }
  if (!report.weights) return verdict;
  for (const verify::TensorWeights* tensor : verify::worst_tensors(*report.weights, 20)) {
    if (!verify::is_fault(*tensor)) continue;
    verdict.text += fmt::format("{} {} misrounded {} coarse {} of {}\n", tensor->name,
                                verify::relation_name(tensor->relation), tensor->sums.misrounded,
                                tensor->reach.coarse, tensor->reach.groups);
  }
  return verdict;
}

}  // namespace

Verdict judge_default(const std::filesystem::path& source, const std::filesystem::path& output,
                      std::string_view fault) {
  // Sources are few, and are not changed.
  static std::map<std::filesystem::path, verify::ComparedCheckpoint> opened;
  auto at = opened.find(source);
  if (at == opened.end()) at = opened.emplace(source, verify::open_compared(source, {})).first;
  const verify::ComparedCheckpoint& before = at->second;
  verify::Report report = compare_structure(before, output);
  if (!fault.empty()) {
    Verdict verdict = verdict_on(report);
    if (!verdict.passed && verdict.text.find(fault) != std::string::npos) return verdict;
  }
  compare_weights(before, output, report);
  return verdict_on(report);
}

}  // namespace ingot::testing
