#include "convert/job/part_files.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"

namespace ingot::convert {

namespace fs = std::filesystem;

fs::path part_file(const OutputPaths& paths, const JobPart& part, std::uint32_t run,
                   std::string_view suffix) {
  return paths.parts / fmt::format("{}-of-{}.{}{}", part.index, part.n, run, suffix);
}

std::vector<PartFile> part_files(const OutputPaths& paths, std::string_view suffix) {
  std::vector<PartFile> files;
  std::error_code failure;
  fs::directory_iterator at(paths.parts, failure);
  for (; !failure && at != fs::directory_iterator(); at.increment(failure)) {
    const std::string whole = at->path().filename().string();
    std::string_view name = whole;
    if (!name.ends_with(suffix)) continue;
    const auto index = take_number(name, "-of-");
    const auto n = index ? take_number(name, ".") : std::nullopt;
    const auto run = n ? take_number(name, suffix) : std::nullopt;
    if (run && name.empty() && *index < *n)
      files.push_back({.part = {.index = *index, .n = *n}, .run = *run, .path = at->path()});
  }
  if (failure && failure != std::errc::no_such_file_or_directory)
    throw system_error(failure.value(), "list the parts", paths.parts.string());
  std::ranges::sort(files, {}, [](const PartFile& file) { return std::pair(file.part, file.run); });
  return files;
}

}  // namespace ingot::convert
