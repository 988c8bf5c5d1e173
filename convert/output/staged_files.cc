#include "convert/output/staged_files.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fcntl.h>

#include "formats/base/error.h"

namespace ingot::convert {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

[[noreturn]] void refuse_stranger(const fs::path& path) {
  throw Error(ErrorCode::kMismatch,
              "is not the file that this run has written: somebody has put another in its place "
              "(start again with --force)")
      .in_file(path.string());
}

}  // namespace

StagedFiles::StagedFiles(fs::path directory) : directory_(std::move(directory)) {
  if (!fs::exists(directory_)) return;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory_)) {
    if (entry.is_regular_file()) take(entry.path().lexically_relative(directory_).string());
  }
}

std::optional<FileStamp> StagedFiles::known(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name);
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

Fd StagedFiles::open(const std::string& name) {
  if (known(name)) return reopen(name, 0);
  Fd file = Fd::create_new(directory_ / name, O_RDWR);
  if (!file.valid()) {
    throw Error(ErrorCode::kExists,
                "was made by somebody else while this run was at work (stop that, and start again "
                "with --force)")
        .in_file((directory_ / name).string());
  }
  const std::lock_guard lock(mutex_);
  files_[name] = file.stamp();
  return file;
}

Fd StagedFiles::reopen(const std::string& name, int flags) const {
  Fd file = Fd::open_for_writing(directory_ / name, O_RDWR | flags);
  const auto ours = known(name);
  if (!ours || !file.stamp().is_same_file(*ours)) refuse_stranger(directory_ / name);
  return file;
}

void StagedFiles::take(const std::string& name) {
  const auto stamp = stamp_of(directory_ / name);
  if (!stamp) {
    throw Error(ErrorCode::kNotFound, "is gone: somebody removed it while this run was at work")
        .in_file((directory_ / name).string());
  }
  const std::lock_guard lock(mutex_);
  files_[name] = *stamp;
}

void StagedFiles::require_ours(const std::string& name) const {
  const auto ours = known(name);
  const auto found = stamp_of(directory_ / name);
  if (!ours || !found || !found->is_same_file(*ours)) refuse_stranger(directory_ / name);
}

CopiedFile copy_durably(const fs::path& from, const fs::path& to, const CheckStop& check_stop) {
  fs::create_directories(to.parent_path());
  const Fd source = Fd::open_for_reading(from);
  Fd target = Fd::open_for_writing(to, O_WRONLY | O_CREAT | O_TRUNC);
  const std::uint64_t size = source.size();
  TensorHasher hasher;
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t done = 0; done < size;) {
    check_stop();
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    source.read_exact(piece, done);
    target.write_exact(piece, done);
    hasher.update(piece);
    done += piece.size();
  }
  target.sync();
  target.close();
  return {.n_bytes = size, .hash = hasher.finish()};
}

}  // namespace ingot::convert
