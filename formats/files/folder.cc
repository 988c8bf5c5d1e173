#include "formats/files/folder.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <system_error>
#include <tuple>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/error.h"

namespace ingot {

namespace fs = std::filesystem;

namespace {

constexpr mode_t kFolderMode = 0777, kFileMode = 0644;
constexpr int kFolderFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;

// The identity of an open file's or folder's mount. Two mounts of one folder have two numbers;
// systems without such numbers have only the device.
std::pair<std::uint64_t, std::uint64_t> mount_of(const Fd& entry) {
  std::uint64_t mount = 0;
#ifdef STATX_MNT_ID
  struct statx facts {};
  if (::statx(entry.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &facts) == 0 &&
      (facts.stx_mask & STATX_MNT_ID) != 0)
    mount = facts.stx_mnt_id;
#endif
  return {entry.stamp().device, mount};
}

Error in_the_way(std::string_view fact, const std::string& path) {
  return Error(ErrorCode::kExists,
               "{}, and ingot writes and removes nothing through it (remove it, or choose another "
               "output)",
               fact)
      .in_file(path);
}

std::optional<struct stat> facts_of(const Fd& folder, const std::string& name,
                                    const std::string& path) {
  struct stat facts {};
  if (::fstatat(folder.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return facts;
  if (errno == ENOENT) return std::nullopt;
  throw system_error(errno, "look at", path);
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

using Listing = std::unique_ptr<DIR, CloseFolder>;

// Names in a folder, in no order, and the number of the error that ended the reading; 0: none.
std::pair<std::vector<std::string>, int> listed_names(const Listing& listing) {
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(listing.get());
    if (entry == nullptr) return {std::move(names), errno};
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

// Names in a folder, in no order.
std::vector<std::string> child_names(const Fd& folder) {
  const int fd = uninterrupted(
      [&] { return ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) throw system_error(errno, "list", folder.path());
  const Listing listing(::fdopendir(fd));
  if (listing == nullptr) {
    const int number = errno;
    ::close(fd);
    throw system_error(number, "list", folder.path());
  }
  auto [names, number] = listed_names(listing);
  if (number != 0) throw system_error(number, "list", folder.path());
  return std::move(names);
}

// Entries of a folder by name, without those that are gone since they were listed.
std::vector<fs::directory_entry> listed_entries(const fs::path& folder, std::error_code& failure) {
  std::vector<fs::directory_entry> entries;
  // By text: libstdc++ 12 frees what was never its own where it gets no memory to join two paths.
  std::string text = folder.string();
  if (!text.ends_with('/')) text += '/';
  for (const std::string& name : names_in(folder, failure)) {
    std::error_code own;
    fs::directory_entry entry(text + name, own);
    if (!own) {
      entries.push_back(std::move(entry));
    } else if (own != std::errc::no_such_file_or_directory) {
      failure = own;
    }
  }
  return entries;
}

// Visits what is below a folder; keeps the first failure.
void visit_tree(const fs::path& folder,
                const std::function<bool(const fs::directory_entry&)>& visit,
                std::error_code& failure) {
  std::error_code own;
  for (const fs::directory_entry& entry : listed_entries(folder, own)) {
    std::error_code ignored;
    const bool is_folder = !entry.is_symlink(ignored) && entry.is_directory(ignored);
    if (visit(entry) && is_folder) visit_tree(entry.path(), visit, own);
  }
  if (!failure) failure = own;
}

void require_read(const std::error_code& failure, const fs::path& folder) {
  if (failure) throw system_error(failure.value(), "read directory", folder.string());
}

}  // namespace

std::vector<std::string> names_in(const fs::path& folder, std::error_code& failure) {
  failure.clear();
  int number = 0;
  std::vector<std::string> names;
  if (const Listing listing(::opendir(folder.c_str())); listing != nullptr) {
    std::tie(names, number) = listed_names(listing);
  } else {
    number = errno;
  }
  if (number == ENOMEM) throw std::bad_alloc();
  if (number == 0) {
    std::ranges::sort(names);
    return names;
  }
  failure.assign(number, std::generic_category());
  return {};
}

std::error_code visit_below(const fs::path& folder,
                            const std::function<bool(const fs::directory_entry&)>& visit) {
  std::error_code failure;
  visit_tree(folder, visit, failure);
  return failure;
}

std::vector<fs::directory_entry> entries_in(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::directory_entry> entries = listed_entries(folder, failure);
  require_read(failure, folder);
  return entries;
}

std::vector<fs::directory_entry> entries_below(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  const std::error_code failure = visit_below(folder, [&](const fs::directory_entry& entry) {
    entries.push_back(entry);
    return true;
  });
  require_read(failure, folder);
  std::ranges::sort(entries);
  return entries;
}

fs::path resolved_path(const fs::path& path) {
  std::error_code failure;
  fs::path whole = fs::weakly_canonical(fs::absolute(path), failure);
  if (failure == std::errc::not_enough_memory) throw std::bad_alloc();
  if (failure) whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

Folder Folder::open(const fs::path& path) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), kFolderFlags); });
  if (fd < 0) throw system_error(errno, "open the folder", path.string());
  return Folder(Fd(fd, path.string()));
}

std::string Folder::path_of(const fs::path& name) const {
  return (fs::path(path()) / name).string();
}

std::optional<Folder> Folder::step(const std::string& name) const {
  const std::string whole = path_of(name);
  const int fd =
      uninterrupted([&] { return ::openat(fd_.get(), name.c_str(), kFolderFlags | O_NOFOLLOW); });
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
    const auto facts = facts_of(fd_, name, whole);
    throw in_the_way(
        facts && S_ISLNK(facts->st_mode) ? "is a symbolic link" : "is there, and no folder", whole);
  }
  if (fd < 0) throw system_error(errno, "open the folder", whole);
  Folder below(Fd(fd, whole));
  if (mount_of(below.fd_) != mount_of(fd_)) throw in_the_way("is another mount", whole);
  return below;
}

std::optional<Folder> Folder::find(const fs::path& name) const {
  const int same = ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0);
  if (same < 0) throw system_error(errno, "open the folder", path());
  std::optional<Folder> at = Folder(Fd(same, path()));
  for (const fs::path& part : name) {
    INGOT_CHECK(part.is_relative() && part != ".." && part != ".");
    if (!part.empty()) at = at->step(part.string());
    if (!at) return std::nullopt;
  }
  return at;
}

Folder Folder::make(const fs::path& name) const {
  Folder at = *find({});
  for (const fs::path& part : name) {
    if (::mkdirat(at.fd_.get(), part.c_str(), kFolderMode) != 0 && errno != EEXIST)
      throw system_error(errno, "create the folder", at.path_of(part));
    std::optional<Folder> below = at.step(part.string());
    // Another run has removed the folder at this moment.
    if (!below) throw system_error(ENOENT, "open the folder", at.path_of(part));
    at = *std::move(below);
  }
  return at;
}

Folder Folder::holder_of(const fs::path& name) const {
  std::optional<Folder> holder = find(name.parent_path());
  if (!holder) throw system_error(ENOENT, "open the folder", path_of(name.parent_path()));
  return *std::move(holder);
}

Fd Folder::create(const fs::path& name, int flags) const {
  const Folder holder = holder_of(name);
  const int fd = uninterrupted([&] {
    return ::openat(holder.fd_.get(), name.filename().c_str(),
                    flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  });
  if (fd < 0 && errno != EEXIST) throw system_error(errno, "create", path_of(name));
  return Fd(fd, path_of(name));
}

Fd Folder::replace(const fs::path& name, int flags) const {
  Fd file = create(name, flags);
  if (!file.valid()) {
    remove(name);
    file = create(name, flags);
  }
  if (!file.valid()) throw system_error(EEXIST, "create", path_of(name));
  return file;
}

Fd Folder::open(const fs::path& name, int flags) const {
  const Folder holder = holder_of(name);
  const std::string bare = name.filename().string();
  const auto facts = facts_of(holder.fd_, bare, path_of(name));
  if (facts && S_ISLNK(facts->st_mode)) throw in_the_way("is a symbolic link", path_of(name));
  if (facts && S_ISREG(facts->st_mode) && facts->st_nlink > 1)
    throw in_the_way("has other names (hard links)", path_of(name));
  const int fd = uninterrupted(
      [&] { return ::openat(holder.fd_.get(), bare.c_str(), flags | O_NOFOLLOW | O_CLOEXEC); });
  if (fd < 0) throw system_error(errno, "open for writing", path_of(name));
  return Fd(fd, path_of(name));
}

std::optional<Fd> Folder::entry(const fs::path& name) const {
  const std::optional<Folder> holder = find(name.parent_path());
  if (!holder) return std::nullopt;
  const int fd = uninterrupted([&] {
    return ::openat(holder->fd_.get(), name.filename().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  });
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) throw system_error(errno, "look at", path_of(name));
  return Fd(fd, path_of(name));
}

std::optional<FileStamp> Folder::stamp(const fs::path& name) const {
  const std::optional<Fd> found = entry(name);
  return found ? std::optional(found->stamp()) : std::nullopt;
}

bool Folder::is_mount(const fs::path& name) const {
  const std::optional<Fd> found = entry(name);
  return found && mount_of(*found) != mount_of(fd_);
}

std::uint64_t Folder::n_links(const fs::path& name) const {
  const std::optional<Folder> holder = find(name.parent_path());
  if (!holder) return 0;
  const auto facts = facts_of(holder->fd_, name.filename().string(), path_of(name));
  return !facts ? 0 : S_ISREG(facts->st_mode) ? facts->st_nlink : 1;
}

void Folder::rename(const fs::path& from, const Folder& folder, const fs::path& to) const {
  const Folder source = holder_of(from), target = folder.holder_of(to);
  const int result = uninterrupted([&] {
    return ::renameat(source.fd_.get(), from.filename().c_str(), target.fd_.get(),
                      to.filename().c_str());
  });
  if (result != 0)
    throw system_error(errno, fmt::format("rename to {}", folder.path_of(to)), path_of(from));
}

void Folder::remove(const fs::path& name) const {
  const std::optional<Folder> holder = find(name.parent_path());
  if (!holder) return;
  const std::string bare = name.filename().string();
  const auto facts = facts_of(holder->fd_, bare, path_of(name));
  if (!facts) return;
  const int flags = S_ISDIR(facts->st_mode) ? AT_REMOVEDIR : 0;
  if (::unlinkat(holder->fd_.get(), bare.c_str(), flags) != 0 && errno != ENOENT)
    throw system_error(errno, "remove", path_of(name));
}

void Folder::remove_all(const fs::path& name) const {
  const std::optional<Folder> holder = find(name.parent_path());
  if (!holder) return;
  const auto facts = facts_of(holder->fd_, name.filename().string(), path_of(name));
  if (facts && S_ISDIR(facts->st_mode)) {
    if (const std::optional<Folder> folder = holder->step(name.filename().string())) {
      for (const std::string& below : child_names(folder->fd_)) folder->remove_all(below);
    }
  }
  holder->remove(name.filename());
}

}  // namespace ingot
