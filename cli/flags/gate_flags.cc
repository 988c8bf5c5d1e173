#include "cli/flags/gate_flags.h"

#include "cli/flags/flag_table.h"

namespace ingot::cli {

void GateFlags::require_valid() const {
  verify::Thresholds ignored;
  if (!thresholds.empty()) verify::read_thresholds(thresholds, ignored);
  for (const std::string& text : requirements) verify::add_requirement(text, ignored);
}

void GateFlags::add_to(verify::VerificationOptions& options) const {
  options.thresholds = thresholds;
  options.requirements = requirements;
}

void declare_gates(FlagTable& table, GateFlags& flags) {
  table.add(FlagGroup::kComparison,
            {{"--thresholds", &flags.thresholds, "YAML file of gates, instead of the defaults"},
             {"--require", &flags.requirements,
              "a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be "
              "repeated; metrics: ingot "
              "list metrics"}});
}

std::string level_names() {
  return names_of(verify::levels(), &verify::LevelFacts::name);
}

}  // namespace ingot::cli
