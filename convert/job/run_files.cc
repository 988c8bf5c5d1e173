#include "convert/job/run_files.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/files/folder.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhole = "whole.";

const fs::path& folder_of(const OutputPaths& paths, std::string_view suffix) {
  return suffix == kClaimSuffix ? paths.claims : paths.parts;
}

}  // namespace

fs::path run_file(const OutputPaths& paths, const std::optional<JobPart>& part, std::uint32_t run,
                  std::string_view suffix) {
  const std::string who =
      part ? fmt::format("{}-of-{}.", part->index, part->n) : std::string(kWhole);
  return folder_of(paths, suffix) / fmt::format("{}{}{}", who, run, suffix);
}

std::vector<RunFile> run_files(const OutputPaths& paths, std::string_view suffix) {
  const fs::path& folder = folder_of(paths, suffix);
  std::vector<RunFile> files;
  std::error_code failure;
  for (const std::string& text : names_in(folder, failure)) {
    std::string_view name = text;
    std::optional<JobPart> part;
    if (name.starts_with(kWhole)) {
      name.remove_prefix(kWhole.size());
    } else {
      const auto index = take_number(name, "-of-");
      const auto n = index ? take_number(name, ".") : std::nullopt;
      if (!n || *index >= *n) continue;
      part = {.index = *index, .n = *n};
    }
    const auto run = take_number(name, suffix);
    if (run && name.empty()) files.push_back({.part = part, .run = *run, .path = folder / text});
  }
  if (failure && failure != std::errc::no_such_file_or_directory)
    throw system_error(failure.value(), "list the runs", folder.string());
  std::ranges::sort(files, {}, [](const RunFile& file) { return std::pair(file.part, file.run); });
  return files;
}

}  // namespace ingot::convert
