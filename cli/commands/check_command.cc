#include <iostream>
#include <memory>

#include <fmt/format.h>

#include "check/check.h"
#include "cli/commands/commands.h"
#include "cli/flags/flag_table.h"
#include "cli/terminal/terminal.h"
#include "formats/base/fault_lines.h"
#include "formats/base/figures.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"

namespace ingot::cli {

using check::CheckResult;
using check::Finding;
using check::LoaderRule;
using check::Severity;
using formats::Json;

namespace {

struct CheckFlags {
  std::string directory, source_of, family, config;
  std::size_t threads = 0;
  std::uint64_t tensor_parallel = 1;
  bool deep = false, no_hashes = false, json = false;
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
                      .after = rule == nullptr ? ""
                                               : fmt::format(" [{}; refused by {}]", rule->name,
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

Json finding_json(const Finding& finding) {
  Json json = {{"severity", check::severity_name(finding.severity)},
               {"code", error_code_name(finding.code)}};
  if (const LoaderRule* rule = check::find_loader_rule(finding.rule)) {
    json["rule"] = rule->name;
    json["loaders"] = rule->loaders;
  }
  if (!finding.file.empty()) json["file"] = finding.file;
  if (!finding.tensor.empty()) json["tensor"] = finding.tensor;
  json["message"] = finding.message;
  return json;
}

Json result_json(const CheckFlags& flags, const CheckResult& result) {
  Json json = {{"schema", 1}, {"command", "check"}, {"directory", flags.directory}};
  if (!flags.source_of.empty()) json["source_of"] = flags.source_of;
  json["family"] = result.family;
  json["dialect"] = result.dialect;
  json["files"] = result.n_files;
  json["tensors"] = result.n_tensors;
  json["bytes"] = result.n_bytes;
  json["has_manifest"] = result.has_manifest;
  json["hashed"] = result.n_hashed;
  json["errors"] = count(result, Severity::kError);
  json["warnings"] = count(result, Severity::kWarning);
  json["findings"] = formats::json_list(result.findings, finding_json);
  return json;
}

int run_check(const CheckFlags& flags) {
  const std::size_t threads = threads_of(flags.threads);
  install_stop_signals();
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
  std::cout << (flags.json ? formats::json_text(result_json(flags, result)) : result_text(result));
  return count(result, Severity::kError) == 0 ? kExitDone : kExitTrouble;
}

}  // namespace

std::function<int()> declare_check(FlagTable& table) {
  auto flags = std::make_shared<CheckFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory,
                      "checkpoint to check: whole, one rank's slices, those of all ranks, or one "
                      ".safetensors file",
                      ValueKind::kPath),
             {"--deep", &flags->deep, "read every FP8 weight for NaN codes"},
             {"--no-hashes", &flags->no_hashes, "compare sizes with the manifest, not bytes"},
             {"--tp",
              &flags->tensor_parallel,
              "also warn where a cut for so many tensor-parallel ranks would split a scale group",
              {.range = NumberRange{1, 1024}}},
             {"--source-of",
              &flags->source_of,
              "only tell whether this is what the directory CONVERTED was made from",
              {.excludes = {"--deep", "--no-hashes", "--family", "--family-file", "--config"},
               .value_name = "CONVERTED",
               .kind = ValueKind::kFolder}}});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, kFamilyHelp),
             family_file_flag(&flags->family),
             {"--config", &flags->config, kConfigHelp, {.kind = ValueKind::kFile}}});
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {json_flag(&flags->json)});
  table.footer =
      "Examples:\n"
      "  ingot check DeepSeek-V3.2                                        structure, completeness, "
      "what loaders refuse\n"
      "  ingot check DeepSeek-V3.2-bf16 --deep                            and every weight\n"
      "  ingot check DeepSeek-V3.2 --source-of DeepSeek-V3.2-bf16         is this what was "
      "converted?\n"
      "Exit code 2 when a finding is an error, 0 when there are only warnings or none.";
  return [flags] { return run_check(*flags); };
}

}  // namespace ingot::cli
