#include <algorithm>
#include <iostream>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "check/check.h"
#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/terminal.h"
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

struct Words {
  std::string directory, source_of, family, config;
  std::size_t threads = 0;
  std::uint64_t tensor_parallel = 1;
  bool deep = false, no_hashes = false, json = false;
};

std::string_view severity_word(Severity severity) {
  return severity == Severity::kError ? "error" : "warning";
}

std::uint64_t count(const CheckResult& result, Severity severity) {
  return static_cast<std::uint64_t>(
      std::count_if(result.findings.begin(), result.findings.end(),
                    [&](const Finding& finding) { return finding.severity == severity; }));
}

std::string counted(std::uint64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", count_text(n), noun, n == 1 ? "" : "s");
}

// Few lines for each cause; --json has every finding.
std::string findings_text(const std::vector<Finding>& findings) {
  std::vector<ListedFault> faults;
  for (const Finding& finding : findings) {
    const LoaderRule* rule = check::find_loader_rule(finding.rule);
    faults.push_back({.before = fmt::format("{}: ", severity_word(finding.severity)),
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
  Json json = {{"severity", severity_word(finding.severity)},
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

Json result_json(const Words& words, const CheckResult& result) {
  Json json = {{"schema", 1}, {"command", "check"}, {"directory", words.directory}};
  if (!words.source_of.empty()) json["source_of"] = words.source_of;
  json["family"] = result.family;
  json["dialect"] = result.dialect;
  json["files"] = result.n_files;
  json["tensors"] = result.n_tensors;
  json["bytes"] = result.n_bytes;
  json["has_manifest"] = result.has_manifest;
  json["hashed"] = result.n_hashed;
  json["errors"] = count(result, Severity::kError);
  json["warnings"] = count(result, Severity::kWarning);
  json["findings"] = Json::array();
  for (const Finding& finding : result.findings) json["findings"].push_back(finding_json(finding));
  return json;
}

int run_check(const Words& words) {
  const std::size_t threads = words.threads == 0 ? available_processors() : words.threads;
  install_stop_signals();
  const CheckResult result =
      words.source_of.empty()
          ? check::check_directory(words.directory,
                                   {.family = words.family,
                                    .deep = words.deep,
                                    .hashes = !words.no_hashes,
                                    .threads = threads,
                                    .tensor_parallel = words.tensor_parallel,
                                    .stop_requested = stop_requested},
                                   words.config)
          : check::check_is_source_of(words.directory, words.source_of,
                                      {.threads = threads, .stop_requested = stop_requested});
  std::cout << (words.json ? formats::json_text(result_json(words, result)) : result_text(result));
  return count(result, Severity::kError) == 0 ? kExitDone : kExitTrouble;
}

}  // namespace

std::function<int()> declare_check(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(FlagGroup::kCommon,
            {{"directory",
              &words->directory,
              "checkpoint to check: whole, one rank's slices, or those of all ranks",
              {.is_required = true}},
             {"--deep", &words->deep, "read every FP8 weight for NaN codes"},
             {"--no-hashes", &words->no_hashes, "compare sizes with the manifest, not bytes"},
             {"--tp",
              &words->tensor_parallel,
              "also warn where a cut for so many tensor-parallel ranks would split a scale group",
              {.range = NumberRange{1, 1024}}},
             {"--source-of",
              &words->source_of,
              "only tell whether this is what the directory CONVERTED was made from",
              {.excludes = {"--deep", "--no-hashes", "--family", "--config"},
               .value_name = "CONVERTED"}}});
  table.add(FlagGroup::kSource,
            {{"--family", &words->family,
              "model family instead of config.json's; generic accepts any names"},
             {"--config", &words->config,
              "config.json of the model, for shards that have none beside them"}});
  table.add(FlagGroup::kJob,
            {{"--threads", &words->threads, kThreadsHelp, {.range = kThreadRange}}});
  table.add(FlagGroup::kReport, {{"--json", &words->json, kJsonHelp}});
  table.set_footer(
      "Examples:\n"
      "  ingot check DeepSeek-V3.2                                        structure, completeness, "
      "what loaders refuse\n"
      "  ingot check DeepSeek-V3.2-bf16 --deep                            and every weight\n"
      "  ingot check DeepSeek-V3.2 --source-of DeepSeek-V3.2-bf16         is this what was "
      "converted?\n"
      "Exit code 2 when a finding is an error, 0 when there are only warnings or none.");
  return [words] { return run_check(*words); };
}

}  // namespace ingot::cli
