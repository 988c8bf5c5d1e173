#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "check/check.h"
#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/records/manifest.h"
#include "shard/join/rank_directories.h"
#include "shard/join/source.h"

namespace ingot::shard {

using formats::CheckOptions;
using formats::CheckResult;
using formats::Finding;

namespace {

// Slices without a manifest above them. Ranks that a user gathered have manifests of their own;
// shards that others made have nothing that they could be compared with.
CheckResult check_gathered(const std::filesystem::path& directory, const CheckOptions& options) {
  CheckResult result;
  for (const std::string& name : rank_directories_in(directory)) {
    formats::add_directory(name, directory / name,
                           formats::check_checkpoint(directory / name, options), result);
  }
  return result;
}

void check_joined(const std::filesystem::path& directory, const CheckOptions& options,
                  const std::filesystem::path& config, CheckResult& result) {
  std::set<std::pair<std::string_view, std::string>> told;
  for (const Finding& finding : result.findings) told.emplace(finding.rule, finding.tensor);
  try {
    const formats::Checkpoint model = open_source(
        directory,
        {.open = {.family = options.family, .threads = options.threads}, .config = config});
    for (Finding& finding :
         formats::run_loader_rules(model, {.deep = options.deep,
                                          .threads = options.threads,
                                          .stop_requested = options.stop_requested,
                                          .tensor_parallel = options.tensor_parallel})) {
      // The engines of these rows load no slices, so what they refuse of the whole says nothing.
      const bool is_of_whole = finding.rule.starts_with("engine.");
      if (!is_of_whole && !told.contains({finding.rule, finding.tensor}))
        result.findings.push_back(std::move(finding));
    }
    result.family = model.family().name;
    result.dialect = model.dialect().name;
    if (result.n_files != 0) return;
    result.n_files = model.files().size();
    result.n_tensors = model.stored().size();
    for (const formats::SourceFile& file : model.files()) result.n_bytes += file.n_bytes;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    Finding finding = formats::finding_of(error);
    const bool is_told =
        std::any_of(result.findings.begin(), result.findings.end(), [&](const Finding& other) {
          return other.code == finding.code && other.message == finding.message;
        });
    if (!is_told) result.findings.push_back(std::move(finding));
  }
}

}  // namespace

CheckResult check_directory(const std::filesystem::path& given, const CheckOptions& options,
                            const std::filesystem::path& config) {
  const std::filesystem::path directory = formats::checkpoint_directory(given);
  if (!is_sliced(directory)) return formats::check_checkpoint(directory, options);
  std::error_code failure;
  const bool has_top = std::filesystem::exists(directory / formats::kManifestName, failure);
  CheckResult result =
      has_top ? formats::check_checkpoint(directory, options) : check_gathered(directory, options);
  check_joined(directory, options, config, result);
  return result;
}

}  // namespace ingot::shard
