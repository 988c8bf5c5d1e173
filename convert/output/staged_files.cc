#include "convert/output/staged_files.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fcntl.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/files/shared_blocks.h"

namespace ingot::convert {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

[[noreturn]] void refuse_stranger(const fs::path& path) {
  throw Error(ErrorCode::kMismatch,
              "is not the file that this run has written: another process has replaced it (start "
              "again with --force)")
      .in_file(path.string());
}

}  // namespace

StagedFiles::StagedFiles(Folder folder) : folder_(std::move(folder)) {
  for (const fs::directory_entry& entry : entries_below(directory())) {
    if (entry.is_symlink()) {
      throw Error(ErrorCode::kExists,
                  "is a symbolic link, which ingot does not make (put the file itself there, or "
                  "start again with --force)")
          .in_file(entry.path().string());
    }
    if (entry.is_regular_file()) take(entry.path().lexically_relative(directory()).string());
  }
}

std::optional<FileStamp> StagedFiles::known(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name);
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

Fd StagedFiles::open(const std::string& name) {
  if (known(name)) {
    if (folder_.n_links(name) > 1) {
      require_ours(name);
      const std::string own = name + ".own";
      copy_durably(directory() / name, make(own));
      folder_.rename(own, folder_, name);
      take(name);
    }
    return reopen(name, 0);
  }
  Fd file = folder_.create(name, O_RDWR);
  if (!file.valid()) {
    throw Error(ErrorCode::kExists,
                "was made by another process while this run was at work (stop that, and start "
                "again with --force)")
        .in_file(file.path());
  }
  const std::lock_guard lock(mutex_);
  files_[name] = file.stamp();
  return file;
}

Fd StagedFiles::reopen(const std::string& name, int flags) const {
  Fd file = folder_.open(name, O_RDWR | flags);
  const auto ours = known(name);
  if (!ours || !file.stamp().is_same_file(*ours)) refuse_stranger(file.path());
  return file;
}

fs::path StagedFiles::make(const std::string& name) {
  (void)folder_.make(fs::path(name).parent_path());
  const Fd file = folder_.replace(name, O_WRONLY);
  const std::lock_guard lock(mutex_);
  files_[name] = file.stamp();
  return file.path();
}

bool StagedFiles::share(const fs::path& from, const std::string& name, bool link) {
  (void)folder_.make(fs::path(name).parent_path());
  folder_.remove(name);
  if (!link || !link_file(from, directory() / name))
    return copy_durably(from, make(name)).is_shared;
  take(name);
  return true;
}

void StagedFiles::take(const std::string& name) {
  const auto stamp = folder_.stamp(name);
  if (!stamp) {
    throw Error(ErrorCode::kNotFound,
                "is gone: another process removed it while this run was at work")
        .in_file((directory() / name).string());
  }
  const std::lock_guard lock(mutex_);
  files_[name] = *stamp;
}

void StagedFiles::drop_but(const std::set<std::string>& names) {
  const std::lock_guard lock(mutex_);
  std::erase_if(files_, [&](const auto& file) {
    const bool is_dropped = !names.contains(file.first);
    if (is_dropped) folder_.remove(file.first);
    return is_dropped;
  });
}

void StagedFiles::require_ours(const std::string& name) const {
  const auto ours = known(name);
  const auto found = folder_.stamp(name);
  if (!ours || !found || !found->is_same_file(*ours)) refuse_stranger(directory() / name);
}

CopiedFile copy_durably(const fs::path& from, const fs::path& to) {
  const Fd source = Fd::open_for_reading(from);
  Fd target = Fd::open_for_writing(to, O_WRONLY | O_NOFOLLOW);
  const std::uint64_t size = source.size();
  const bool is_shared = share_blocks(source, target);
  TensorHasher hasher;
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t done = 0; done < size;) {
    StopScope::check();
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    source.read_exact(piece, done);
    if (!is_shared) target.write_exact(piece, done);
    hasher.update(piece);
    done += piece.size();
  }
  target.sync();
  target.close();
  return {.n_bytes = size, .hash = hasher.finish(), .is_shared = is_shared};
}

}  // namespace ingot::convert
