#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "convert/output/output_directory.h"
#include "convert/plan/job_part.h"

namespace ingot::convert {

/// A file that a run of a job, or of a part of one, has in `.ingot-partial`: its claim, or the
/// journal of a part. Runs are numbered from 1; only the run of a number makes its files.
struct RunFile {
  std::optional<JobPart> part;  ///< nullopt: the whole
  std::uint32_t run = 0;
  std::filesystem::path path;
};

inline constexpr std::string_view kClaimSuffix = ".claim", kJournalSuffix = ".jsonl";

/// `claims/whole.RUN.claim`, `claims/I-of-N.RUN.claim`, `parts/I-of-N.RUN.jsonl`.
std::filesystem::path run_file(const OutputPaths& paths, const std::optional<JobPart>& part,
                               std::uint32_t run, std::string_view suffix);

/// The files of this suffix, by part and run. Names that are not ours are passed over.
std::vector<RunFile> run_files(const OutputPaths& paths, std::string_view suffix);

}  // namespace ingot::convert
