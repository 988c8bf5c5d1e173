#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/check.h"
#include "cli/commands/commands.h"
#include "cli/live/live_flags.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "engines/verdicts.h"
#include "formats/base/fault_lines.h"
#include "formats/base/stop_scope.h"
#include "library/checking.h"
#include "library/options/flag_table.h"
#include "report/figures.h"
#include "report/rows.h"
#include "report/table_text.h"

namespace ingot::cli {

using check::CheckResult;
using check::Finding;
using check::Severity;
using formats::Json;

namespace {

struct CheckFlags : library::CheckOptions {
  bool modules = false;
  LiveFlags live;
};

std::uint64_t count(const CheckResult& result, Severity severity) {
  return check::count_findings(result.findings, severity);
}

std::string counted(std::uint64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", count_text(n), noun, n == 1 ? "" : "s");
}

// Few lines for each cause; --json has every finding.
std::string findings_text(const std::vector<Finding>& findings) {
  std::vector<ListedFault> faults;
  for (const Finding& finding : findings) {
    const check::LoaderRule* rule = check::find_loader_rule(finding.rule);
    faults.push_back({.before = fmt::format("{}: ", check::severity_name(finding.severity)),
                      .file = finding.file,
                      .tensor = finding.tensor,
                      .message = finding.message,
                      .after = rule == nullptr
                                   ? ""
                                   : fmt::format(" [{}; {} {}]", rule->name,
                                                 finding.severity == Severity::kError ? "refused by"
                                                                                      : "concerns",
                                                 rule->loaders)});
  }
  std::string text;
  for (const std::string& line : fault_lines(faults)) text += line + "\n";
  return text;
}

std::string result_text(const CheckResult& result) {
  std::string text = findings_text(result.findings);
  text += fmt::format("{}: {}, {}, {}", result.family.empty() ? "unknown family" : result.family,
                      counted(result.n_tensors, "tensor"), counted(result.n_files, "file"),
                      bytes_text(result.n_bytes));
  if (result.n_hashed != 0)
    text += fmt::format(", {} hashed and compared with the manifest",
                        counted(result.n_hashed, "tensor"));
  return text + fmt::format(": {}, {}\n", counted(count(result, Severity::kError), "error"),
                            counted(count(result, Severity::kWarning), "warning"));
}

std::string modules_text(const engines::EngineView& view) {
  const auto read_as = [](const Json& row) {
    return row["believed"].get<std::string>() + (row["agrees"] == true ? "" : " !");
  };
  const auto joined = [](const Json& name) {
    return name == std::string_view() ? "-" : name.get<std::string>();
  };
  return table_text(table_of(formats::json_list(view.modules, library::module_row),
                             {{"linear layers", "name"},
                              {"n", "count"},
                              {"stored"},
                              {"read as", "", read_as},
                              {"by", "because"},
                              {"joined to", "joined", joined}}),
                    report_width());
}

// Says which values were not read, on which a verdict about an engine does not rest.
std::string unread_text(const check::Unread& unread) {
  if (unread.n_tensors == 0) return "not read: codes and plain weights (ingot check --deep does)\n";
  return fmt::format(
      "not read: {} of more than {}, which no loader compares with others ({}; ingot check reads "
      "them), codes "
      "and plain weights (ingot check --deep does)\n",
      counted(unread.n_tensors, "scale"), bytes_text(check::kSmallBytes),
      bytes_text(unread.n_bytes));
}

// The verdict and its reason, all findings, and with --modules how the engine builds each layer.
std::string engine_text(const library::Checked& checked, bool with_modules) {
  const engines::EngineVerdict& verdict = *checked.verdict;
  const bool is_seen = verdict.loads && engines::is_known(verdict.evidence);
  const char* words = is_seen         ? "loads this checkpoint"
                      : verdict.loads ? "should load this checkpoint"
                      : verdict.is_silent
                          ? "loads this checkpoint without an error and computes garbage"
                      : verdict.is_known ? "does not load this checkpoint"
                                         : "is not known to load this checkpoint";
  std::string text = fmt::format("{} {}", checked.engine->name, words);
  if (verdict.loads) {
    if (!verdict.options.empty()) text += fmt::format(", with {}", fmt::join(verdict.options, " "));
    text += fmt::format(" ({})\n{}", checked.engine->known_text(verdict.evidence),
                        unread_text(checked.result.unread));
  } else {
    if (!verdict.tensor.empty()) text += fmt::format(": '{}'", verdict.tensor);
    text += fmt::format(
        ": {}{}\n", verdict.reason,
        checked.is_mended_by_repair && verdict.reason.find("ingot repair") == std::string::npos
            ? " (ingot repair mends it)"
            : "");
  }
  for (const std::string& note : verdict.notes) text += note + "\n";
  return text + result_text(checked.result) +
         (with_modules && checked.view ? modules_text(*checked.view) : "");
}

std::string rates_text(const check::ReadingRates& rates) {
  const auto rate = [&](double seconds) {
    const double per_second = static_cast<double>(rates.n_bytes) / std::max(seconds, 1e-9);
    return bytes_text(static_cast<std::uint64_t>(per_second));
  };
  return fmt::format("read {}: cold at {}/s, hot at {}/s\n", bytes_text(rates.n_bytes),
                     rate(rates.cold_seconds), rate(rates.hot_seconds));
}

int run_check_command(const CheckFlags& flags) {
  const StopScope stop = stop_at_signals("the checkpoint was checked");
  if (flags.live.is_asked_for())
    return passes_live_check(flags.live, flags) ? kExitDone : kExitBelowThreshold;
  const library::Checked checked = library::run_check(flags);
  const bool is_of_engine = checked.engine != nullptr;
  answer().add(library::check_json(flags, checked));
  if (!answer().is_json) {
    out() << (is_of_engine ? engine_text(checked, flags.modules) : result_text(checked.result));
    if (checked.rates) out() << rates_text(*checked.rates);
  }
  if (is_of_engine) return checked.loads() ? kExitDone : kExitBelowThreshold;
  return checked.count(Severity::kError) == 0 ? kExitDone : kExitTrouble;
}

}  // namespace

std::function<int()> declare_check(FlagTable& table) {
  auto flags = std::make_shared<CheckFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory,
                      "checkpoint to check: whole, one rank's slices, those of all ranks, or one "
                      ".safetensors file",
                      ValueKind::kCheckpointOrFile)});
  library::declare_check_options(table, *flags);
  declare_live(table, flags->live);
  table.add(FlagGroup::kReport, {{"--modules",
                                  &flags->modules,
                                  "how the engine reads each linear layer, and by which entry",
                                  {.needs = "--engine", .is_for_people = true}},
                                 json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot check DeepSeek-V3.2                   structure, completeness, loader rules\n"
      "  ingot check DeepSeek-V3.2-bf16 --deep       and every weight\n"
      "  ingot check DeepSeek-V3.2 --source-of OUT   is this its source?\n"
      "  ingot check OUT --engine vllm               whether vLLM loads it\n"
      "  ingot check OUT --engine vllm --modules     and how it reads each linear layer\n"
      "  ingot check OUT --live http://127.0.0.1:8000   whether the engine that serves it has "
      "these weights\n"
      "Exit code 2 when a finding is an error, 0 when there are only warnings or none. With "
      "--engine "
      "1 if it would load wrongly, or not at all; with --live 1 if a parameter differs.";
  return [flags] { return run_check_command(*flags); };
}

}  // namespace ingot::cli
