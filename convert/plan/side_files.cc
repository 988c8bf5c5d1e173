#include "convert/plan/side_files.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {
namespace fs = std::filesystem;
namespace {

// Tokenizers, code and pictures of a release take some tens of megabytes.
constexpr std::uint64_t kManySideBytes = std::uint64_t{1} << 30;

bool is_below(const fs::path& path, const fs::path& directory) {
  const auto [at, rest] =
      std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return at == directory.end();
}

}  // namespace

void require_own_side_files(const formats::Checkpoint& source) {
  const fs::path own = fs::canonical(source.directory());
  const bool is_snapshot = own.parent_path().filename() == "snapshots";
  const fs::path blobs = own.parent_path().parent_path() / "blobs";
  ErrorList faults;
  for (const formats::SideFile& side : source.side_files()) {
    const fs::path path = source.directory() / side.path;
    const fs::path target = fs::canonical(path);
    if (is_below(target, own) || (is_snapshot && is_below(target, blobs))) continue;
    faults.add(Error(ErrorCode::kUnsupported,
                     fmt::format("is a link to {}, outside the source, and the output would get a "
                                 "copy of it (put the file itself there, or accept all such links "
                                 "with --follow-links)",
                                 target.string()))
                   .in_file(path.string()));
  }
  faults.throw_if_any();
}

std::vector<std::string> side_file_warnings(const formats::Checkpoint& source) {
  std::uint64_t n_bytes = 0;
  const formats::SideFile* largest = nullptr;
  for (const formats::SideFile& side : source.side_files()) {
    n_bytes += side.n_bytes;
    if (largest == nullptr || side.n_bytes > largest->n_bytes) largest = &side;
  }
  if (n_bytes <= kManySideBytes) return {};
  return {
      fmt::format("files beside the weights have {} bytes and are copied as they are, the "
                  "largest is {} with {} (move away what does not belong to the model)",
                  n_bytes, largest->path, largest->n_bytes)};
}

}  // namespace ingot::convert
