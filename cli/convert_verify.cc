#include "cli/convert_verify.h"

#include <iostream>

#include <fmt/format.h>

#include "cli/flag_table.h"
#include "cli/size_option.h"
#include "cli/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "verify/verification.h"

namespace ingot::cli {

void ConvertVerifyWords::require_valid(const JobWords& job) const {
  if (skip && !job.resume)
    throw Error(ErrorCode::kInvalidArgument, "--no-verify goes with --resume");
  if (levels.empty()) {
    if (gates.thresholds.empty() && gates.requirements.empty()) return;
    throw Error(ErrorCode::kInvalidArgument, "--thresholds and --require go with --verify");
  }
  if (job.consume_source) {
    throw Error(ErrorCode::kInvalidArgument,
                "--verify compares with the source, which --consume-source deletes");
  }
  verify::parse_levels(levels);
  gates.require_valid();
}

void ConvertVerifyWords::require_possible(const formats::Checkpoint& source) const {
  if (levels.empty()) return;
  for (const verify::Level level : verify::parse_levels(levels)) {
    if (level == verify::Level::kLayers || level == verify::Level::kGreedy)
      (void)inference::model_spec(source.family(), source.config());
  }
}

std::string ConvertVerifyWords::text() const {
  if (levels.empty()) return {};
  std::string text = fmt::format("--verify {}", levels);
  if (!gates.thresholds.empty()) text += fmt::format(" --thresholds {}", gates.thresholds);
  for (const std::string& requirement : gates.requirements)
    text += fmt::format(" --require '{}'", requirement);
  return text;
}

void declare_convert_verify(FlagTable& table, ConvertVerifyWords& words) {
  table.add(FlagGroup::kComparison, {{"--verify", &words.levels,
                                      fmt::format("compare with the source before anything is "
                                                  "published: {}, or all; below a gate nothing is "
                                                  "published, and the exit code is 1",
                                                  level_words())},
                                     {"--no-verify",
                                      &words.skip,
                                      "with --resume: publish without the verification that the "
                                      "conversion was begun with (recorded in the "
                                      "manifest)",
                                      {.excludes = {"--verify"}}}});
  declare_gates(table, words.gates);
}

std::function<convert::Inspection(const std::filesystem::path& staged)> inspection_of(
    const ConvertVerifyWords& words, const std::string& input, const std::string& family,
    const JobWords& job) {
  if (words.levels.empty()) return {};
  return [&](const std::filesystem::path& staged) {
    verify::VerificationOptions options{
        .levels = verify::parse_levels(words.levels),
        .family = family,
        .output_name = std::filesystem::absolute(job.output).lexically_normal().filename().string(),
        .threads = job.n_threads(),
        .mem_limit = parse_size(job.mem_limit, "--mem-limit"),
        .tool_version = std::string(convert::kVersion),
        .stop_requested = stop_requested};
    words.gates.add_to(options);
    const verify::Report report = verify::verify_pair(input, staged, options);
    std::cerr << verify::report_text(report, job.n_worst);
    return convert::Inspection{.may_publish = report.passed(),
                               .report = formats::json_text(verify::report_json(report))};
  };
}

}  // namespace ingot::cli
