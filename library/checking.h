#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "check/check.h"
#include "check/reading_rates.h"
#include "engines/verdicts.h"
#include "formats/json/json.h"
#include "library/options/flag_table.h"

// `ingot check`, and ingot_check().

namespace ingot::library {

/// Options of a check, as said; threads: 0 for every processor.
struct CheckOptions : check::CheckOptions {
  std::string directory, source_of, config, engine;
  bool no_hashes = false;
};
void declare_check_options(FlagTable& table, CheckOptions& options);

/// The result of a check; with --engine also how the engine builds the model.
struct Checked {
  check::CheckResult result;
  const engines::EngineRow* engine = nullptr;
  /// With --engine: its verdict, after the rules and its beliefs; the modules are those of the
  /// view.
  std::optional<engines::EngineVerdict> verdict;
  std::optional<engines::EngineView> view;  ///< nullopt: a fault keeps it from opening
  bool is_mended_by_repair = false;         ///< the engine loads what `ingot repair` makes of it
  std::optional<check::ReadingRates> rates = {};  ///< rates of --deep

  [[nodiscard]] bool loads() const { return verdict && verdict->loads; }
  [[nodiscard]] std::uint64_t count(check::Severity severity) const {
    return check::count_findings(result.findings, severity);
  }
};
Checked run_check(const CheckOptions& options);

/// The rows of EngineView::modules.
formats::Json module_row(const engines::BelievedModules& row);
/// The keys of check in its document (Answer).
formats::Json check_json(const CheckOptions& options, const Checked& checked);

}  // namespace ingot::library
