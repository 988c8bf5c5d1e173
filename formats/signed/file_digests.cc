#include "formats/signed/file_digests.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/base/parallel.h"
#include "formats/base/printable.h"
#include "formats/base/stop_scope.h"
#include "formats/files/folder.h"

namespace ingot::formats {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigestPiece = std::size_t{1} << 20;
constexpr std::size_t kDeepestFolder = 32;

struct ListedFile {
  std::string name;
  std::uint64_t n_bytes = 0;
  std::size_t content = 0;  // number of the first file with these bytes
};

// The files of a folder and of those below it, by the parts of their paths.
class FileListing {
 public:
  FileListing(const fs::path& root, const DigestOptions& options) : root_(root), options_(options) {
    add({}, 0);
  }
  std::vector<ListedFile> files;

 private:
  void add(const std::string& prefix, std::size_t depth) {
    if (depth > kDeepestFolder) {
      throw Error(ErrorCode::kLimit, "has more than {} folders in one another", kDeepestFolder)
          .in_file((root_ / prefix).string());
    }
    // entries_in() sorts by bytes, which for UTF-8 is the order of characters. A folder and a file
    // have different names, so that parts decide wherever whole paths would not.
    for (const fs::directory_entry& entry : entries_in(root_ / prefix)) {
      const std::string name = prefix + entry.path().filename().string();
      std::error_code failure;
      const bool is_folder = entry.is_directory(failure);
      if (options_.ignored.contains(name) ||
          (options_.leaves_out && options_.leaves_out(is_folder ? name + "/" : name)))
        continue;
      const auto refuse = [&](std::string_view fact) {
        throw Error(ErrorCode::kUnsupported, "{}", fact).in_file(entry.path().string());
      };
      if (!is_utf8(name)) refuse("has a name that is no UTF-8, which no statement can hold");
      if (!options_.follows_links && entry.is_symlink(failure))
        refuse("is a symbolic link: statements are about files (put the file in its place)");
      if (is_folder) {
        add(name + "/", depth + 1);
        continue;
      }
      const auto stamp = stamp_of(entry.path());
      if (!stamp || !entry.is_regular_file(failure)) refuse("is no file that could be read");
      const auto [first, is_new] =
          contents_.emplace(std::pair(stamp->device, stamp->inode), files.size());
      files.push_back({.name = name, .n_bytes = stamp->n_bytes, .content = first->second});
    }
  }

  const fs::path& root_;
  const DigestOptions& options_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> contents_;
};

}  // namespace

std::string sha256_of_file(const fs::path& path, const std::function<void(std::uint64_t)>& count) {
  const Fd file = Fd::open_for_reading(path);
  const FileStamp before = file.stamp();
  const std::uint64_t size = before.n_bytes;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(size, kDigestPiece));
  Sha256 sha;
  for (std::uint64_t done = 0; done < size;) {
    StopScope::check();
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    file.read_exact(piece, done);
    sha.update(piece);
    done += piece.size();
    if (count) count(piece.size());
  }
  const auto after = stamp_of(path);
  if (!after || !before.is_unwritten(*after)) {
    throw Error(ErrorCode::kMismatch,
                "has changed while it was read (do this when nothing writes there)")
        .in_file(path.string());
  }
  return sha.finish_hex();
}

std::vector<FileDigest> digest_files(const fs::path& folder, const DigestOptions& options) {
  const std::vector<ListedFile> files = FileListing(folder, options).files;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    total += files[i].content == i ? files[i].n_bytes : 0;
  std::atomic<std::uint64_t> done = 0;
  const auto count = [&](std::uint64_t n) {
    const std::uint64_t so_far = done.fetch_add(n, std::memory_order_relaxed) + n;
    if (options.progress) options.progress(so_far, total);
  };
  std::vector<FileDigest> digests(files.size());
  parallel_for(files.size(), options.threads, [&](std::size_t i) {
    digests[i] = {.name = files[i].name, .sha256 = {}, .n_bytes = files[i].n_bytes};
    if (files[i].content == i) digests[i].sha256 = sha256_of_file(folder / files[i].name, count);
  });
  for (std::size_t i = 0; i < files.size(); ++i)
    digests[i].sha256 = digests[files[i].content].sha256;
  return digests;
}

}  // namespace ingot::formats
