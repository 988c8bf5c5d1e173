#include "delta/apply.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "delta/file_copy.h"
#include "delta/journal.h"
#include "delta/stream.h"
#include "delta/weights.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/files/folder.h"
#include "formats/files/hub_cache.h"
#include "formats/records/manifest.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::StoredTensor;

namespace {

/// A plan of the files of a base: a pure function of names, headers and links.
struct FilePlan {
  /// Files that are put there as they are: name to where they are, and the hash they must have.
  struct Placed {
    fs::path from;
    std::optional<Hash128> hash;
  };
  std::map<std::string, Placed> placed;
  std::set<std::string> removed;
  /// Weights files that are another name of one that is written whole: name to that one's.
  std::map<std::string, std::string> linked;
  std::vector<std::string> folders;  ///< directories of ranks, which have states of their own
  std::vector<bool> is_whole;        ///< weights files that are written whole, by number
  std::vector<bool> is_run;          ///< weights files of which ranges are written

  [[nodiscard]] bool wants(std::uint32_t file) const { return is_whole[file]; }
};

constexpr std::uint64_t kBlock = 4096;  // size of the blocks that a file system shares

void require_writable(const fs::path& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    throw system_error(errno, "change the files in it", folder.string());
}

// Gives a file or folder that takes the place of another its owner, as far as this user may.
void keep_owner(const fs::path& from, const fs::path& to) {
  struct stat facts {};
  if (::lstat(from.c_str(), &facts) != 0) return;
  const int kept = ::lchown(to.c_str(), facts.st_uid, facts.st_gid);
  (void)kept;
}

// For a folder; one without such a folder before it stays as it is.
void keep_mode(const fs::path& from, const fs::path& to) {
  if (!stamp_of(from)) return;
  keep_owner(from, to);
  std::error_code failure;
  const fs::file_status status = fs::status(from, failure);
  if (!failure) fs::permissions(to, status.permissions(), failure);
  if (failure) throw system_error(failure.value(), "set the mode", to.string());
}

// True if ranges of the file may be written: it is a regular file with this one name. The journal
// is begun only where each of its files could be opened.
bool may_write_to(const Folder& folder, const std::string& name) {
  try {
    return folder.open(name, O_RDWR).valid();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kExists || error.code() == ErrorCode::kPermission) return false;
    throw;
  }
}

// Writes weights files whole, from the pieces of their tensors.
class WholeFiles {
 public:
  WholeFiles(const Folder& folder, const fs::path& inside, const Weights& weights,
             const FilePlan& plan)
      : weights_(weights), files_(weights.files().size()), is_clone_(files_.size(), false) {
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      if (!plan.is_whole[file]) continue;
      const formats::SourceFile& facts = weights.files()[file];
      const Fd source = Fd::open_for_reading(weights.bytes().path(file));
      const fs::path name = inside / facts.name;
      (void)folder.make(name.parent_path());
      files_[file] = folder.replace(name, O_RDWR);
      keep_owner(source.path(), files_[file].path());
      is_clone_[file] = clone_file(source, files_[file]);
      if (is_clone_[file]) continue;
      files_[file].reserve(facts.n_bytes);
      files_[file].write_exact(weights.bytes().header_bytes(file), 0);
    }
  }

  void put(const TensorPiece& piece) {
    const std::uint32_t file = piece.tensor->file;
    const std::uint64_t begin = piece.tensor->offset + piece.offset;
    if (!files_[file].valid()) return;
    if (!is_clone_[file]) return files_[file].write_exact(piece.after, begin);
    if (!piece.is_patched) return;
    // Blocks without a change stay shared.
    const auto differs = [&](std::uint64_t from, std::uint64_t to) {
      const auto part = [&](std::span<const std::byte> bytes) {
        return bytes.subspan(static_cast<std::size_t>(from - begin),
                             static_cast<std::size_t>(to - from));
      };
      return !std::ranges::equal(part(piece.before), part(piece.after));
    };
    const std::uint64_t end = begin + piece.after.size();
    for (std::uint64_t at = begin, run = begin; at < end; at = run) {
      const auto next = [&] { return std::min(round_down(run, kBlock) + kBlock, end); };
      while (run < end && differs(run, next())) run = next();
      if (run > at)
        files_[file].write_exact(piece.after.subspan(static_cast<std::size_t>(at - begin),
                                                     static_cast<std::size_t>(run - at)),
                                 at);
      while (run < end && !differs(run, next())) run = next();
    }
  }
  void finish() {
    for (Fd& file : files_) {
      if (!file.valid()) continue;
      file.sync();
      file.close();
    }
  }

 private:
  const Weights& weights_;
  std::vector<Fd> files_;
  std::vector<bool> is_clone_;
};

/// A base and what is applied to it.
class Application {
 public:
  Application(const fs::path& base, std::span<const fs::path> given, const ApplyOptions& options)
      : base_(base), options_(options), chain_(open_chain(base, given)) {
    applied_.from = chain_.from;
    applied_.to = chain_.to;
    if (chain_.is_empty()) return;
    if (chain_.full) add_version(*chain_.full);
    for (const Version& version : chain_.deltas) add_version(version);
    weights_.emplace(chain_.full ? chain_.full->directory : base_, options.threads);
    reader_.emplace(chain_, *weights_);
    const auto stored = weights_->stored();
    applied_.n_tensors = stored.size();
    applied_.n_bytes = weights_->n_bytes();
    for (const StoredTensor& tensor : stored) {
      applied_.names.push_back(tensor.name);
      if (reader_->is_changed(tensor)) ++applied_.n_changed;
    }
    if (chain_.has_record()) applied_.n_compared = stored.size();
    if (!chain_.full) require_one_version(*weights_, chain_.from);
  }

  Applied check() {
    if (!chain_.is_empty()) {
      check_extra();
      run([](std::uint32_t) { return false; }, {});
    }
    return std::move(applied_);
  }

  Applied apply(const Folder& folder) {
    require_writable(base_);
    // Leftovers of a killed run.
    folder.remove_all(kStagingName);
    folder.remove_all(kSweptName);
    remove_sibling();
    if (chain_.is_empty()) return std::move(applied_);
    lock_ranks();
    check_extra();
    if (options_.in_place || !exchange(folder)) {
      write_in_place(folder);
      applied_.method = ApplyMethod::kJournal;
    } else {
      applied_.method = ApplyMethod::kExchange;
    }
    return std::move(applied_);
  }

 private:
  void add_version(const Version& version) {
    AppliedVersion& row = applied_.versions.emplace_back();
    row.version = version.number;
    row.base = version.base;
    row.is_full = version.is_full;
    if (version.is_full) return;
    row.has_record = version.record.has_value();
    row.encoding = encoding_name(version.encoding);
    row.checksum = checksum_row(version.checksum).name;
    row.n_tensors = version.tensors.size();
    row.n_payload = version.n_payload();
    row.n_extra = version.extra.size();
  }

  void run(const std::function<bool(std::uint32_t)>& wants,
           const std::function<void(const TensorPiece&)>& look) {
    const std::uint64_t total = reader_->n_read(wants);
    applied_.states = reader_->run(options_.threads, wants, look, [&](std::uint64_t done) {
      if (options_.progress) options_.progress(done, total);
    });
  }

  // Also those that a later version replaces.
  void check_extra() const {
    for (const Version& version : chain_.deltas) {
      for (const ExtraFile& file : version.extra) {
        const fs::path path = version.extra_path(file);
        if (version.record && hash_of_file(path) != file.hash) refuse_extra(path);
      }
    }
  }
  [[noreturn]] static void refuse_extra(const fs::path& path) {
    throw Error(ErrorCode::kMismatch, "is not the file that {} lists", kDeltaRecordName)
        .in_file(path.string());
  }

  /// Plans the files; a base's file of which ranges may be written is `is_run` in place.
  FilePlan plan_files(const Folder& folder, bool in_place) const {
    FilePlan plan;
    const std::vector<bool>& changed = reader_->changed_files();
    plan.is_whole.assign(changed.size(), false);
    plan.is_run.assign(changed.size(), false);
    for (std::uint32_t file = 0; file < changed.size(); ++file) {
      const std::string& name = weights_->files()[file].name;
      plan.is_run[file] = in_place && !chain_.full && changed[file] && may_write_to(folder, name);
      plan.is_whole[file] = (changed[file] || chain_.full) && !plan.is_run[file];
      const std::uint32_t leader = reader_->leader_of(file);
      if (!plan.is_whole[file] || leader == file) continue;
      plan.is_whole[file] = false;
      plan.linked.emplace(name, weights_->files()[leader].name);
    }
    plan.folders.assign(weights_->folders().begin(), weights_->folders().end());
    if (chain_.full) plan_full(plan);
    for (const Version& version : chain_.deltas) {
      const auto remove = [&](const std::string& name) {
        plan.placed.erase(name);
        plan.removed.insert(name);
      };
      if (version.record) {
        for (const std::string& name : version.record->removed) remove(name);
      } else if (!version.tensors.empty()) {
        for (const std::string& name : extra_names(*weights_)) {
          if (is_own_record(name)) remove(name);
        }
      }
      for (const ExtraFile& file : version.extra) {
        plan.removed.erase(file.name);
        plan.placed[file.name] = {version.extra_path(file),
                                  version.record ? std::optional(file.hash) : std::nullopt};
      }
    }
    return plan;
  }

  // A full version brings all its files, and those of the base go, but for folders.
  void plan_full(FilePlan& plan) const {
    std::set<std::string> weights;
    for (const formats::SourceFile& file : weights_->files()) weights.insert(file.name);
    for (const fs::directory_entry& entry : entries_below(chain_.full->directory)) {
      const std::string name = entry.path().lexically_relative(chain_.full->directory).string();
      if (!entry.is_regular_file() || name.starts_with('.') || weights.contains(name)) continue;
      plan.placed[name] = {entry.path(), std::nullopt};
    }
    const auto remove_others = [&](const fs::path& folder) {
      if (!stamp_of(base_ / folder)) return;
      for (const fs::directory_entry& entry : entries_in(base_ / folder)) {
        const std::string name = (folder / entry.path().filename()).string();
        const bool is_folder = entry.is_directory() && !entry.is_symlink();
        if (!is_folder && !weights.contains(name) && !plan.placed.contains(name))
          plan.removed.insert(name);
      }
    };
    remove_others({});
    for (const std::string& folder : weights_->folders()) remove_others(folder);
  }

  // Puts files that are taken as they are into a folder, and names of those that are written whole.
  void place(const FilePlan& plan, const Folder& folder, const fs::path& inside) const {
    for (const auto& [name, first] : plan.linked) {
      const fs::path from = fs::path(folder.path()) / inside / first, to = inside / name;
      (void)folder.make(to.parent_path());
      folder.remove(to);
      if (!link_file(from, folder.path() / to)) (void)copy_into(from, folder, to);
    }
    for (const auto& [name, file] : plan.placed) {
      const Hash128 hash = copy_into(file.from, folder, inside / name);
      if (file.hash && hash != *file.hash) refuse_extra(file.from);
    }
  }

  // Removes the old version, or an unfinished new one, that a kill has left.
  void remove_sibling() const;
  // Keeps runs away that change one rank by itself.
  void lock_ranks();
  // False where the file system, or the place of the base, allows no exchange.
  bool exchange(const Folder& folder);
  // Fills the sibling. False where it cannot hold what the base has.
  bool mirror(const FilePlan& plan, const Folder& folder, const Folder& sibling) const;
  // Throws where a journal could not be finished: by a mount or a folder in the place of a file, a
  // file in that of a folder, or a folder that this user may not change.
  void require_open(const FilePlan& plan, const Folder& folder) const;
  void write_in_place(const Folder& folder);

  const fs::path base_;
  const ApplyOptions& options_;
  Chain chain_;
  Applied applied_;
  std::optional<Weights> weights_;
  std::optional<ChainReader> reader_;
  std::vector<Fd> locks_;  // until the old version is removed
};

[[noreturn]] void refuse_second(const fs::path& place) {
  throw Error(ErrorCode::kExists, "gets a version from another process at this moment")
      .in_file(place.string());
}

Fd locked(const fs::path& place) {
  Fd folder = Fd::open_directory(place);
  if (folder.try_lock() == LockState::kHeldElsewhere) refuse_second(place);
  return folder;
}

void Application::lock_ranks() {
  for (const std::string& rank : weights_->folders()) {
    if (stamp_of(base_ / rank)) locks_.push_back(locked(base_ / rank));
  }
}

fs::path sibling_name(const fs::path& base) {
  return fmt::format(".{}.ingot-next", base.filename().string());
}

void Application::remove_sibling() const {
  try {
    Folder::open(base_.parent_path()).remove_all(sibling_name(base_));
  } catch (const Error&) {
    // It is in the way of nothing, and the next run tries again.
  }
}

int exchange_names(const fs::path& a, const fs::path& b) {
  return uninterrupted(
      [&] { return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE); });
}

// True if directories in a folder can be exchanged.
bool can_exchange(const Folder& folder) {
  const fs::path a = "exchange-a", b = "exchange-b", path = folder.path();
  (void)folder.make(a);
  (void)folder.make(b);
  const bool can = exchange_names(path / a, path / b) == 0;
  folder.remove(a);
  folder.remove(b);
  return can;
}

bool Application::mirror(const FilePlan& plan, const Folder& folder, const Folder& sibling) const {
  std::set<std::string> left_out = plan.removed;
  for (const auto& [name, file] : plan.placed) left_out.insert(name);
  for (const auto& [name, first] : plan.linked) left_out.insert(name);
  for (std::uint32_t file = 0; file < plan.is_whole.size(); ++file) {
    if (plan.is_whole[file]) left_out.insert(weights_->files()[file].name);
  }
  left_out.insert(state_name({}).string());
  for (const std::string& rank : plan.folders) left_out.insert(state_name(rank).string());
  const fs::path target = sibling.path();
  for (const fs::directory_entry& entry : entries_below(base_)) {
    const fs::path name = entry.path().lexically_relative(base_);
    if (folder.is_mount(name)) return false;
    if (left_out.contains(name.string()) || name.begin()->string().starts_with(".ingot-")) continue;
    std::error_code failure;
    const fs::file_status status = entry.symlink_status(failure);
    if (!failure && fs::is_symlink(status)) {
      fs::copy_symlink(entry.path(), target / name, failure);
    } else if (!failure && fs::is_directory(status)) {
      (void)sibling.make(name);
    } else if (!fs::is_regular_file(status) || !link_file(entry.path(), target / name)) {
      return false;
    }
    if (failure) throw system_error(failure.value(), "link", entry.path().string());
  }
  return true;
}

bool Application::exchange(const Folder& folder) {
  const fs::path parent_path = base_.parent_path();
  const fs::path name = sibling_name(base_);
  std::optional<Folder> parent, sibling;
  try {
    parent = Folder::open(parent_path);
    // Throws for a mount, which cannot change its place.
    (void)parent->find(base_.filename());
    parent->remove_all(name);
    sibling = parent->make(name);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kNoSpace) throw;
    applied_.remarks.push_back(
        fmt::format("in place, since no directory can be made next to it: {}", error.what()));
    return false;
  }
  const fs::path marker = formats::kPartialName;
  try {
    if (!can_exchange(*sibling)) {
      parent->remove_all(name);
      applied_.remarks.emplace_back("in place, since the file system exchanges no directories");
      return false;
    }
    // The lock of the base goes with the old folder: this one holds until that is removed.
    locks_.push_back(locked(sibling->path()));
    (void)sibling->make(marker);
    const FilePlan plan = plan_files(folder, /*in_place=*/false);
    if (!mirror(plan, folder, *sibling)) {
      parent->remove_all(name);
      applied_.remarks.emplace_back(
          "in place, since not everything in the directory can have a hard link");
      return false;
    }
    WholeFiles files(*sibling, {}, *weights_, plan);
    run([&](std::uint32_t file) { return plan.wants(file); },
        [&](const TensorPiece& piece) { files.put(piece); });
    files.finish();
    place(plan, *sibling, {});
    for (const std::string& rank : plan.folders) write_state(*sibling, rank, chain_.to);
    write_state(*sibling, {}, chain_.to);
    sibling->remove(marker);
    for (const fs::directory_entry& entry : entries_below(sibling->path())) {
      if (!entry.is_directory() || entry.is_symlink()) continue;
      keep_mode(base_ / entry.path().lexically_relative(sibling->path()), entry.path());
      sync_directory(entry.path());
    }
    keep_mode(base_, sibling->path());
    sync_directory(sibling->path());
    if (exchange_names(parent_path / name, base_) != 0) {
      const int number = errno;
      const Error error = system_error(number, "exchange it with the new version", base_.string());
      if (number != EXDEV && number != EBUSY && number != EINVAL && number != EPERM &&
          number != EACCES)
        throw Error(error);
      // An overlay whose lower layer has the directory; a folder of others with the sticky bit.
      parent->remove_all(name);
      applied_.remarks.push_back(fmt::format("in place: {}", error.what()));
      return false;
    }
  } catch (Error& error) {
    try {
      parent->remove_all(name);
    } catch (const Error&) {
      // The next run removes it.
    }
    if (error.code() == ErrorCode::kNoSpace)
      throw Error(ErrorCode::kNoSpace, "{} (--in-place needs room for changed ranges only)",
                  error.what());
    throw;
  }
  sync_directory(parent_path);
  try {
    parent->remove_all(name);
  } catch (const Error& error) {
    applied_.remarks.push_back(fmt::format(
        "the new version is in its place, and some of the old one is left: {}", error.what()));
  }
  return true;
}

void Application::require_open(const FilePlan& plan, const Folder& folder) const {
  std::set<fs::path> changed, folders = {fs::path(), fs::path(kSyncFolder)};
  for (std::uint32_t file = 0; file < plan.is_whole.size(); ++file) {
    if (plan.is_whole[file] || plan.is_run[file]) changed.insert(weights_->files()[file].name);
  }
  for (const auto& [name, file] : plan.placed) changed.insert(name);
  for (const auto& [name, first] : plan.linked) changed.insert(name);
  const auto is_found = [&](const fs::path& name) {
    std::error_code failure;
    return fs::exists(fs::symlink_status(base_ / name, failure));
  };
  const auto is_there = [&](const fs::path& name) {
    return is_found(name) && !plan.removed.contains(name.string());
  };
  const auto is_folder = [&](const fs::path& name) {
    return fs::is_directory(base_ / name) && !fs::is_symlink(base_ / name);
  };
  const auto refuse = [&](const fs::path& name, std::string_view fact) {
    throw Error(ErrorCode::kExists, "{}, which the new version has no place for (move it away)",
                fact)
        .in_file((base_ / name).string());
  };
  for (const fs::path& name : changed) {
    for (fs::path parent = name.parent_path(); !parent.empty(); parent = parent.parent_path()) {
      if (is_there(parent) && !is_folder(parent)) refuse(parent, "is no folder");
    }
    if (!is_folder(name)) continue;
    for (const fs::directory_entry& entry : entries_below(base_ / name)) {
      const fs::path below = entry.path().lexically_relative(base_);
      if (is_there(below) && !is_folder(below)) refuse(below, "is in a folder that becomes a file");
    }
  }
  changed.insert(plan.removed.begin(), plan.removed.end());
  for (const fs::path& name : changed) {
    if (stamp_of(base_ / name.parent_path())) folders.insert(name.parent_path());
    if (is_found(name) && folder.is_mount(name)) {
      throw Error(ErrorCode::kExists,
                  "is another mount, and gets no version through it (unmount it, or apply where "
                  "the files themselves are)")
          .in_file((base_ / name).string());
    }
  }
  for (const std::string& rank : plan.folders) folders.insert(fs::path(rank) / kSyncFolder);
  for (const fs::path& name : folders) {
    if (is_folder(name)) require_writable(base_ / name);
  }
}

void Application::write_in_place(const Folder& folder) {
  const fs::path staging = kStagingName;
  const fs::path inside = staging / kStagedFiles;
  try {
    const Folder staged = folder.make(staging);
    const FilePlan plan = plan_files(folder, /*in_place=*/true);
    require_open(plan, folder);
    JournalFacts facts{.version = chain_.to};
    std::vector<RunWriter> runs;
    facts.n_runs = std::max<std::size_t>(std::min(options_.threads, weights_->stored().size()), 1);
    for (std::size_t worker = 0; worker < facts.n_runs; ++worker)
      runs.emplace_back(staged.replace(runs_name(worker), O_WRONLY));
    WholeFiles files(folder, inside, *weights_, plan);
    run([&](std::uint32_t file) { return plan.wants(file); },
        [&](const TensorPiece& piece) {
          files.put(piece);
          if (plan.is_run[piece.tensor->file] && piece.is_patched) runs[piece.worker].add(piece);
        });
    files.finish();
    for (RunWriter& writer : runs) writer.finish();
    place(plan, folder, inside);
    for (std::uint32_t file = 0; file < plan.is_whole.size(); ++file) {
      if (plan.is_whole[file]) facts.staged.push_back(weights_->files()[file].name);
      if (plan.is_run[file]) facts.files.emplace(file, weights_->files()[file].name);
    }
    for (const auto& [name, file] : plan.placed) facts.staged.push_back(name);
    for (const auto& [name, first] : plan.linked) facts.staged.push_back(name);
    facts.folders = plan.folders;
    facts.removed.assign(plan.removed.begin(), plan.removed.end());
    commit_journal(folder, facts);
  } catch (...) {
    try {
      folder.remove_all(staging);
    } catch (const Error&) {
      // The next run removes it.
    }
    throw;
  }
  finish_journal(folder, options_.threads);
}

fs::path place_of(const fs::path& given) {
  const fs::path base = resolved_path(given);
  formats::require_directory(base);
  return base;
}

}  // namespace

std::string_view method_name(ApplyMethod method) {
  switch (method) {
    case ApplyMethod::kNone:
      return "none";
    case ApplyMethod::kExchange:
      return "exchange";
    case ApplyMethod::kJournal:
      return "journal";
  }
  return "";
}

Applied check_chain(const fs::path& base, std::span<const fs::path> given,
                    const ApplyOptions& options) {
  const fs::path place = place_of(formats::checkpoint_directory(base));
  formats::require_finished_directory(place);
  return Application(place, given, options).check();
}

Applied apply_chain(const fs::path& base, std::span<const fs::path> given,
                    const ApplyOptions& options) {
  const fs::path place = place_of(formats::checkpoint_directory(base));
  if (const auto cache = formats::hub_folder_around(place, /*is_whole=*/true)) {
    throw Error(ErrorCode::kInvalidArgument,
                "is in the hub's cache, whose files are fetched and not changed (copy the "
                "checkpoint with cp -rL, and change the copy)")
        .in_file(base.string());
  }
  const Fd lock = locked(place);
  // Another run may have exchanged the directory before it was locked.
  if (const auto now = stamp_of(place); !now || !now->is_same_file(lock.stamp()))
    refuse_second(place);
  const Folder folder = Folder::open(place);
  const fs::path sync_lock = place / kSyncFolder / "lock";
  // The lock of engines that pull, where one was here.
  Fd other_lock;
  if (stamp_of(sync_lock)) other_lock = Fd::open_for_reading(sync_lock);
  if (other_lock.valid() && other_lock.try_lock() == LockState::kHeldElsewhere)
    refuse_second(place);
  std::optional<std::uint64_t> finished;
  if (has_journal(place)) finished = finish_journal(folder, options.threads);
  formats::require_finished_directory(place);
  if (given.empty()) {
    if (finished) return {.from = *finished, .to = *finished, .finished = finished};
    throw Error(ErrorCode::kInvalidArgument,
                "has no journal to finish: give the versions that are to be applied")
        .in_file(place.string());
  }
  Applied applied = Application(place, given, options).apply(folder);
  applied.finished = finished;
  return applied;
}

}  // namespace ingot::delta
