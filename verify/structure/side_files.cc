#include "verify/structure/side_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "formats/checkpoint_listing.h"
#include "formats/stored_hashes.h"

namespace ingot::verify {

using formats::SideFile;

namespace {

constexpr std::string_view kRule = "structure.side-file";
constexpr std::array<std::string_view, 4> kPaperNames = {"README", "LICENSE", "NOTICE", ".git"};
constexpr std::array<std::string_view, 7> kPaperSuffixes = {".md",  ".pdf", ".png", ".jpg",
                                                            ".svg", ".gif", ".webp"};

// For people: what loads the model does not open it.
bool is_paper(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return std::any_of(kPaperNames.begin(), kPaperNames.end(),
                     [&](std::string_view start) { return name.starts_with(start); }) ||
         std::any_of(kPaperSuffixes.begin(), kPaperSuffixes.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

SourceSideFiles::SourceSideFiles(const formats::Checkpoint& source)
    : directory_(source.directory()) {
  for (const SideFile& file : source.side_files()) sizes_.emplace(file.path, file.n_bytes);
}

const Hash128& SourceSideFiles::hash_of(const std::string& path) {
  const auto known = hashes_.find(path);
  if (known != hashes_.end()) return known->second;
  return hashes_.emplace(path, formats::hash_file(directory_ / path)).first->second;
}

void SourceSideFiles::compare(const std::filesystem::path& directory, const std::string& label,
                              StructureFindings& found) {
  const auto tell = [&](const std::string& path, ErrorCode code, std::string message) {
    const Error fact = Error(code, std::move(message)).in_file(label + path);
    is_paper(path) ? found.warning(kRule, fact) : found.error(kRule, fact);
  };
  ErrorList faults;
  std::map<std::string, std::uint64_t> here;
  for (const SideFile& file : formats::list_side_files(directory, faults))
    here.emplace(file.path, file.n_bytes);
  for (const Error& fault : faults.errors()) found.error(kRule, fault);
  for (const auto& [path, n_bytes] : sizes_) {
    const auto at = here.find(path);
    if (at == here.end()) {
      tell(path, ErrorCode::kNotFound, "is missing: the source has it (copy it from there)");
    } else if (at->second != n_bytes) {
      tell(path, ErrorCode::kMismatch,
           fmt::format("has {} bytes, the source's has {} (copy it from there)", at->second,
                       n_bytes));
    } else if (formats::hash_file(directory / path) != hash_of(path)) {
      tell(path, ErrorCode::kMismatch, "holds other bytes than the source's (copy it from there)");
    }
  }
  for (const auto& [path, n_bytes] : here) {
    if (sizes_.contains(path)) continue;
    found.warning(kRule, Error(ErrorCode::kMismatch,
                               "stands beside the weights, but not in the "
                               "source")
                             .in_file(label + path));
  }
}

}  // namespace ingot::verify
