#include "delta/file_copy.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "formats/base/stop_scope.h"
#include "formats/files/shared_blocks.h"

namespace ingot::delta {

namespace {

constexpr std::size_t kCopyPiece = std::size_t{1} << 20;

using TakePiece = std::function<void(std::span<const std::byte>, std::uint64_t offset)>;

Hash128 read_through(const Fd& file, const TakePiece& take) {
  const std::uint64_t n_bytes = file.size();
  TensorHasher hasher;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kCopyPiece, n_bytes)));
  for (std::uint64_t done = 0; done < n_bytes; done += buffer.size()) {
    StopScope::check();
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), n_bytes - done)));
    file.read_exact(piece, done);
    hasher.update(piece);
    if (take) take(piece, done);
  }
  return hasher.finish();
}

}  // namespace

Hash128 hash_of_file(const std::filesystem::path& path) {
  return read_through(Fd::open_for_reading(path), {});
}

bool clone_file(const Fd& from, const Fd& to) {
  struct stat facts {};
  if (::fstat(from.get(), &facts) == 0) (void)::fchmod(to.get(), facts.st_mode & 0777U);
  return share_blocks(from, to);
}

Hash128 copy_into(const std::filesystem::path& from, const Folder& folder,
                  const std::filesystem::path& name) {
  const Fd source = Fd::open_for_reading(from);
  (void)folder.make(name.parent_path());
  Fd target = folder.replace(name, O_WRONLY);
  TakePiece write;
  if (!clone_file(source, target)) {
    write = [&](std::span<const std::byte> piece, std::uint64_t offset) {
      target.write_exact(piece, offset);
    };
  }
  const Hash128 hash = read_through(source, write);
  target.sync();
  target.close();
  return hash;
}

}  // namespace ingot::delta
