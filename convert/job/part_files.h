#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "convert/output/output_directory.h"
#include "convert/plan/job_part.h"

namespace ingot::convert {

/// A file that a run of a part of a job has in `.ingot-partial/parts`: its claim, or its journal.
/// Runs of a part are numbered from 1; only the run of a number makes its files.
struct PartFile {
  JobPart part;
  std::uint32_t run = 0;
  std::filesystem::path path;
};

inline constexpr std::string_view kClaimSuffix = ".claim", kJournalSuffix = ".jsonl";

/// `parts/I-of-N.RUN` with a suffix.
std::filesystem::path part_file(const OutputPaths& paths, const JobPart& part, std::uint32_t run,
                                std::string_view suffix);

/// The files of this suffix, by part and run. Names that are not ours are passed over.
std::vector<PartFile> part_files(const OutputPaths& paths, std::string_view suffix);

}  // namespace ingot::convert
