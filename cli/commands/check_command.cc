#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/check.h"
#include "check/rules/engine_findings.h"
#include "cli/commands/commands.h"
#include "library/options/flag_table.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "engines/view.h"
#include "formats/base/fault_lines.h"
#include "report/figures.h"
#include "report/rows.h"
#include "report/table_text.h"
#include "shard/join/source.h"

namespace ingot::cli {

using check::CheckResult;
using check::Finding;
using check::LoaderRule;
using check::Severity;
using formats::Json;

namespace {

struct CheckFlags {
  std::string directory, source_of, family, config, engine;
  std::size_t threads = 0;
  std::uint64_t tensor_parallel = 1;
  bool deep = false, no_hashes = false;
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
    const LoaderRule* rule = check::find_loader_rule(finding.rule);
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

Json result_json(const CheckFlags& flags, const CheckResult& result) {
  Json json = {{"directory", flags.directory}};
  if (!flags.source_of.empty()) json["source_of"] = flags.source_of;
  json["family"] = result.family;
  json["dialect"] = result.dialect;
  json["files"] = result.n_files;
  json["tensors"] = result.n_tensors;
  json["bytes"] = result.n_bytes;
  json["has_manifest"] = result.has_manifest;
  json["hashed"] = result.n_hashed;
  json["errors"] = check::faults_json(result.findings, Severity::kError);
  json["warnings"] = check::faults_json(result.findings, Severity::kWarning);
  return json;
}

Json module_row(const engines::BelievedModules& row) {
  return {{"name", row.name},         {"count", row.count},     {"stored", row.stored},
          {"believed", row.believed}, {"because", row.because}, {"joined", row.joined},
          {"agrees", row.agrees()}};
}

std::string view_text(const engines::EngineRow& engine, const engines::EngineView& view) {
  const auto believed = [](const Json& row) {
    return row["believed"].get<std::string>() + (row["agrees"] == true ? "" : " !");
  };
  const auto joined = [](const Json& name) { return name == "" ? "-" : name.get<std::string>(); };
  std::string text = table_text(
      table_of(formats::json_list(view.modules, module_row), {{"linear layers", "name"},
                                                              {"n", "count"},
                                                              {"stored"},
                                                              {"believed", "", believed},
                                                              {"by", "because"},
                                                              {"joined to", "joined", joined}}),
      report_width());
  const engines::EngineVerdict& verdict = view.verdict;
  text += verdict.loads ? fmt::format("{} reads these weights ({})", engine.name,
                                      evidence_text(verdict.evidence))
                        : fmt::format("{} {} {}: {}", engine.name,
                                      verdict.is_silent ? "computes garbage with" : "does not read",
                                      verdict.tensor.empty() ? std::string("this model")
                                                             : fmt::format("'{}'", verdict.tensor),
                                      verdict.reason);
  for (const std::string& option : verdict.options) text += ", with " + option;
  for (const std::string& note : verdict.notes) text += "\n" + note;
  return text + "\n";
}

Json view_json(const engines::EngineRow& engine, const engines::EngineView& view) {
  return {{"engine", engine.name},
          {"reads_weights", view.verdict.loads},
          {"is_known", view.verdict.is_known},
          {"is_silent", view.verdict.is_silent},
          {"notes", view.verdict.notes},
          {"evidence", view.verdict.loads ? evidence_text(view.verdict.evidence) : ""},
          {"options", view.verdict.options},
          {"tensor", view.verdict.tensor},
          {"reason", view.verdict.reason},
          {"modules", formats::json_list(view.modules, module_row)}};
}

// Whether the engine loads the checkpoint as it is meant; exit code 1 where it does not.
int run_engine_check(const CheckFlags& flags) {
  const engines::EngineRow& engine = engines::engine_of(flags.engine);
  CheckResult result = check::check_directory(flags.directory,
                                              {.family = flags.family,
                                               .values = false,
                                               .manifest = false,
                                               .threads = threads_of(flags.threads),
                                               .tensor_parallel = flags.tensor_parallel,
                                               .stop_requested = stop_requested},
                                              flags.config);
  result.findings = check::findings_for(engine.engine, result.findings);
  std::optional<engines::EngineView> view;
  // A fault that keeps it from opening is already a finding.
  try {
    view = engines::engine_view(
        shard::open_source(
            flags.directory,
            {.open = {.family = flags.family}, .may_be_file = true, .config = flags.config}),
        engine, {.tensor_parallel = flags.tensor_parallel});
  } catch (const Error& error) {
    if (count(result, Severity::kError) == 0) throw;
  }
  const bool loads = view && view->verdict.loads && count(result, Severity::kError) == 0 &&
                     std::ranges::all_of(view->modules, &engines::BelievedModules::agrees);
  if (answer().is_json) {
    answer().add(result_json(flags, result));
    if (view) answer().add({{"engine", view_json(engine, *view)}});
    answer().add({{"passed", loads}});
  } else {
    const bool is_known = view ? view->verdict.is_known : !result.has_unread_form;
    const bool is_silent = view && view->verdict.is_silent;
    const char* words = loads       ? "loads this checkpoint"
                        : is_silent ? "loads this checkpoint without an error and computes garbage"
                        : is_known  ? "does not load this checkpoint"
                                    : "is not known to load this checkpoint";
    const bool needs_options = loads && !view->verdict.options.empty();
    std::cout << (view ? view_text(engine, *view) : std::string()) << result_text(result)
              << fmt::format("{} {}{}\n", engine.name, words,
                             needs_options
                                 ? fmt::format(", with {}", fmt::join(view->verdict.options, " "))
                                 : "");
  }
  return loads ? kExitDone : kExitBelowThreshold;
}

int run_check(const CheckFlags& flags) {
  install_stop_signals();
  if (!flags.engine.empty()) return run_engine_check(flags);
  const std::size_t threads = threads_of(flags.threads);
  const CheckResult result =
      flags.source_of.empty()
          ? check::check_directory(flags.directory,
                                   {.family = flags.family,
                                    .deep = flags.deep,
                                    .hashes = !flags.no_hashes,
                                    .threads = threads,
                                    .tensor_parallel = flags.tensor_parallel,
                                    .stop_requested = stop_requested},
                                   flags.config)
          : check::check_is_source_of(flags.directory, flags.source_of,
                                      {.threads = threads, .stop_requested = stop_requested});
  const bool is_sound = count(result, Severity::kError) == 0;
  if (answer().is_json) {
    answer().add(result_json(flags, result));
    answer().add({{"passed", is_sound}});
  } else {
    std::cout << result_text(result);
  }
  return is_sound ? kExitDone : kExitTrouble;
}

}  // namespace

std::function<int()> declare_check(FlagTable& table) {
  auto flags = std::make_shared<CheckFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory,
                      "checkpoint to check: whole, one rank's slices, those of all ranks, or one "
                      ".safetensors file",
                      ValueKind::kCheckpointOrFile),
             {"--deep", &flags->deep, "read every FP8 weight for NaN codes"},
             {"--no-hashes", &flags->no_hashes, "compare sizes with the manifest, not bytes"},
             {"--tp",
              &flags->tensor_parallel,
              "also warn where a cut for so many tensor-parallel ranks would split a scale group, "
              "or leave experts so narrow that an engine is wrong",
              {.range = NumberRange{1, 1024}}},
             {"--engine",
              &flags->engine,
              fmt::format("show how this engine builds every linear layer, by headers and JSON "
                          "only: {}; ENGINE:VERSION insists on a version",
                          names_of(engines::engines(), &engines::EngineRow::word)),
              {.excludes = {"--deep", "--no-hashes", "--source-of"}, .value_name = "ENGINE"}},
             {"--source-of",
              &flags->source_of,
              "only tell whether this is the source of the directory CONVERTED",
              {.excludes = {"--deep", "--no-hashes", "--family", "--family-file", "--config"},
               .value_name = "CONVERTED",
               .kind = ValueKind::kCheckpoint}}});
  declare_source(table, flags->family, flags->config, kFamilyHelp);
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot check DeepSeek-V3.2                                        structure, completeness, "
      "loader rules\n"
      "  ingot check DeepSeek-V3.2-bf16 --deep                            and every weight\n"
      "  ingot check DeepSeek-V3.2 --source-of DeepSeek-V3.2-bf16         is this its "
      "source?\n"
      "  ingot check DeepSeek-V3.2-NVFP4 --engine vllm                    how vLLM will build "
      "it\n"
      "Exit code 2 when a finding is an error, 0 when there are only warnings or none. With "
      "--engine "
      "1 if it would\nload wrongly, or not at all.";
  return [flags] { return run_check(*flags); };
}

}  // namespace ingot::cli
