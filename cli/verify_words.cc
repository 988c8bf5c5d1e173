#include "cli/verify_words.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "formats/json/json.h"

namespace ingot::cli {

void GateWords::require_valid() const {
  verify::Thresholds ignored;
  if (!thresholds.empty()) verify::read_thresholds(thresholds, ignored);
  for (const std::string& text : requirements) verify::add_requirement(text, ignored);
}

void GateWords::add_to(verify::VerificationOptions& options) const {
  options.thresholds = thresholds;
  options.requirements = requirements;
}

void declare_gates(FlagTable& table, GateWords& words) {
  table.add(FlagGroup::kComparison,
            {{"--thresholds", &words.thresholds, "YAML file of gates, instead of the defaults"},
             {"--require", &words.requirements,
              "a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be "
              "repeated; metrics: ingot "
              "list metrics"}});
}

std::string level_words() {
  std::string text;
  for (const verify::LevelFacts& facts : verify::levels()) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", facts.name);
  }
  return text;
}

void print_report(const verify::Report& report, bool json, std::optional<std::size_t> n_worst) {
  constexpr std::size_t kJsonWorst = 100;
  std::cout << (json ? formats::json_text(
                           verify::report_json(report, std::max(n_worst.value_or(0), kJsonWorst)))
                     : verify::report_text(report, n_worst));
}

int exit_code_of(const verify::Report& report) {
  return report.passed() ? kExitDone : kExitBelowThreshold;
}

}  // namespace ingot::cli
