#include "convert/output/read_back.h"

#include <cstring>
#include <set>

#include "check/stored_hashes.h"
#include "convert/output/rank_directories.h"
#include "formats/base/aligned_buffer.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/records/manifest.h"

namespace ingot::convert {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kReadAlignment = 4096;
constexpr std::size_t kBufferBytes = std::size_t{2} << 20;
// The bytes that one thread reads of a file before another may take over.
constexpr std::uint64_t kTaskBytes = std::uint64_t{64} << 20;

Error differs(const fs::path& path) {
  return Error(ErrorCode::kMismatch,
               "is read back with other bytes than were written: the disk, or the way to it, "
               "changes bytes (nothing is published; --resume writes this again)")
      .in_file(path.string());
}

// A file as the disk has it: read with O_DIRECT, or after its cached pages were dropped.
class UncachedFile {
 public:
  explicit UncachedFile(const fs::path& path)
      : direct_(Fd::open_direct(path)), file_(Fd::open_for_reading(path)), buffer_(kBufferBytes) {
    file_.drop_cache();
  }

  Hash128 hash(std::uint64_t begin, std::uint64_t n_bytes, const formats::TurnedRows& turned = {}) {
    return check::hash_range(n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
      if (!turned.is_turned()) return read(begin + offset, out);
      turned.nest().gather(
          offset, out, [&](std::uint32_t /*piece*/, std::uint64_t at, std::span<std::byte> run) {
            read(begin + at, run);
          });
    });
  }
  Hash128 hash() { return hash(0, file_.size()); }

 private:
  void read(std::uint64_t offset, std::span<std::byte> out) {
    while (direct_.valid() && !out.empty()) {
      if (offset < start_ || offset >= start_ + held_) {
        start_ = round_down(offset, kReadAlignment);
        const auto n = direct_.read_direct(buffer_.span(), start_);
        held_ = n.value_or(0);
        if (offset >= start_ + held_) direct_ = Fd();
        continue;
      }
      const std::uint64_t at = offset - start_;
      const std::size_t n = std::min<std::size_t>(out.size(), held_ - at);
      std::memcpy(out.data(), buffer_.data() + at, n);
      out = out.subspan(n);
      offset += n;
    }
    // No direct I/O here after all, or no more bytes: this says so.
    if (!out.empty()) file_.read_exact(out, offset);
  }

  Fd direct_, file_;
  AlignedBuffer buffer_;
  std::uint64_t start_ = 0, held_ = 0;  // of the file, in the buffer
};

class ReadBack {
 public:
  ReadBack(const Plan& plan, const OutputPaths& paths, const std::vector<TensorResult>& hashes,
           std::size_t threads)
      : plan_(plan), paths_(paths), hashes_(hashes), threads_(threads) {}

  // The weights files that this run writes, links and all.
  void weights() {
    for (std::uint32_t f = 0; f < plan_.files.size(); ++f) {
      if (!plan_.files[f].is_here && !plan_.files[f].is_linked) continue;
      for (std::uint32_t m = 0; m < plan_.files[f].members.size(); ++m)
        add_weights(member_path(f, m), f, m);
    }
    run_tasks();
  }

  // Marks the weights files as read: parts of the job have read them back themselves.
  void pass_over_weights() {
    for (std::uint32_t f = 0; f < plan_.files.size(); ++f) {
      for (std::uint32_t m = 0; m < plan_.files[f].members.size(); ++m) is_new(member_path(f, m));
    }
  }

  // Directories of ranks have copies of side files where links are not asked for.
  void copies() {
    if (!plan_.has_rank_directories()) return;
    for (std::uint32_t rank = 0; rank < n_ranks(); ++rank) {
      for (const RankFile& file : files_of_rank(plan_, rank))
        add_weights(folder_of(rank) / file.name, file.file, file.member);
    }
    run_tasks();
  }

  void rest(const Hash128& manifest) {
    require(paths_.staged / formats::kManifestName, manifest);
    const formats::Manifest top = *formats::read_manifest(paths_.staged);
    directory(paths_.staged, top);
    if (!plan_.has_rank_directories()) return;
    for (std::uint32_t rank = 0; rank < n_ranks(); ++rank) {
      require(folder_of(rank) / formats::kManifestName, top.slicing->ranks.at(rank).manifest_hash);
      directory(folder_of(rank), *formats::read_manifest(folder_of(rank)));
    }
  }

 private:
  struct Task {
    fs::path path;
    std::uint32_t file = 0, member = 0;
    std::size_t first = 0, last = 0;  // parts [first, last) of the file; the header with part 0
  };

  [[nodiscard]] std::uint32_t n_ranks() const { return plan_.slicing->topology.n_ranks(); }
  [[nodiscard]] fs::path folder_of(std::uint32_t rank) const {
    return paths_.staged / shard::rank_directory_name(rank, n_ranks());
  }

  [[nodiscard]] fs::path member_path(std::uint32_t f, std::uint32_t m) const {
    return paths_.staged / plan_.files[f].members[m].path;
  }
  void run_tasks() {
    parallel_for(tasks_.size(), threads_, [&](std::size_t i) { run(tasks_[i]); });
    tasks_.clear();
  }

  // False for one that was seen by another name.
  bool is_new(const fs::path& path) {
    const auto stamp = stamp_of(path);
    return !stamp || seen_.emplace(stamp->device, stamp->inode).second;
  }

  void add_weights(const fs::path& path, std::uint32_t f, std::uint32_t m) {
    if (!is_new(path)) return;
    const std::vector<PartRef>& parts = plan_.files[f].parts;
    if (parts.empty()) tasks_.push_back({.path = path, .file = f, .member = m});
    std::size_t first = 0;
    std::uint64_t n_bytes = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      n_bytes += slice(parts[part], m).n_bytes;
      if (n_bytes < kTaskBytes && part + 1 < parts.size()) continue;
      tasks_.push_back({.path = path, .file = f, .member = m, .first = first, .last = part + 1});
      first = part + 1;
      n_bytes = 0;
    }
  }

  [[nodiscard]] PlannedSlice slice(const PartRef& at, std::uint32_t member) const {
    return slice_at(plan_, plan_.tensors[at.tensor], at, member);
  }

  void run(const Task& task) const {
    UncachedFile file(task.path);
    if (task.first == 0) {
      for (const auto& [offset, bytes] : plan_.known_bytes(task.file)) {
        TensorHasher hasher;
        hasher.update(std::as_bytes(std::span(bytes)));
        if (file.hash(offset, bytes.size()) != hasher.finish()) throw differs(task.path);
      }
    }
    for (std::size_t part = task.first; part < task.last; ++part) {
      const PartRef& at = plan_.files[task.file].parts[part];
      const PlannedSlice planned = slice(at, task.member);
      if (file.hash(planned.offset, planned.n_bytes, planned.turned) ==
          hashes_[at.tensor].output.at(at.part).at(planned.hash))
        continue;
      throw differs(task.path).in_tensor(plan_.part_name(plan_.tensors[at.tensor], at.part));
    }
  }

  void directory(const fs::path& folder, const formats::Manifest& manifest) {
    for (const formats::ManifestFile& side : manifest.side_files)
      require(folder / side.name, side.hash);
    UncachedFile(folder / formats::kRecordsName);
    formats::read_tensor_records(folder / formats::kRecordsName, manifest.records_hash);
  }

  void require(const fs::path& path, const Hash128& expected) {
    if (is_new(path) && UncachedFile(path).hash() != expected) throw differs(path);
  }

  const Plan& plan_;
  const OutputPaths& paths_;
  const std::vector<TensorResult>& hashes_;
  const std::size_t threads_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;  // device, inode
  std::vector<Task> tasks_;
};

}  // namespace

void read_back(const Plan& plan, const OutputPaths& paths, const std::vector<TensorResult>& hashes,
               const Hash128& manifest, std::size_t threads) {
  ReadBack reader(plan, paths, hashes, threads);
  reader.weights();
  reader.copies();
  reader.rest(manifest);
}

void read_back_part(const Plan& plan, const OutputPaths& paths,
                    const std::vector<TensorResult>& hashes, std::size_t threads) {
  ReadBack(plan, paths, hashes, threads).weights();
}

void read_back_joined(const Plan& plan, const OutputPaths& paths,
                      const std::vector<TensorResult>& hashes, const Hash128& manifest,
                      std::size_t threads) {
  ReadBack reader(plan, paths, hashes, threads);
  reader.pass_over_weights();
  reader.copies();
  reader.rest(manifest);
}

}  // namespace ingot::convert
