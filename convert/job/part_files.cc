#include "convert/job/part_files.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

// Takes a number, and then `after`, from the front of a name.
std::optional<std::uint32_t> take_number(std::string_view& name, std::string_view after) {
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (failure != std::errc()) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  if (!name.starts_with(after)) return std::nullopt;
  name.remove_prefix(after.size());
  return number;
}

}  // namespace

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
