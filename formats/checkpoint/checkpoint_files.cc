#include "formats/checkpoint/checkpoint_files.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include "formats/base/checked.h"
#include "formats/base/fault_lines.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/passes.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/text/list_text.h"

// The weights files of a directory, and how far names and index agree with their headers.

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxOpen = 256;
constexpr std::size_t kMinOpen = 4;

/// Half of the files that the process may open are left to outputs, journals and logs.
std::size_t open_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMinOpen;
  return std::clamp(static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 2 * kMaxOpen)) / 2,
                    kMinOpen, kMaxOpen);
}

/// Length of the file that a header was saved from: its data end where the last tensor ends.
std::uint64_t file_bytes_by_header(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < kLengthBytes)
    throw Error(ErrorCode::kCorrupt, "is not a saved header").in_file(where);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              bytes.size() - kLengthBytes);
  const Json header = parse_json(text, where);
  std::uint64_t data_bytes = 0;
  for (const auto& [name, entry] : header.items()) {
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) continue;
    if ((*offsets)[1].is_number_unsigned())
      data_bytes = std::max(data_bytes, (*offsets)[1].get<std::uint64_t>());
  }
  const auto total = checked_add(bytes.size(), data_bytes);
  if (!total) throw Error(ErrorCode::kCorrupt, "is not a saved header").in_file(where);
  return *total;
}

}  // namespace

WeightsHeader read_weights_header(const WeightsFile& file) {
  if (file.saved_header.empty()) {
    const Fd fd = Fd::open_for_reading(file.path);
    const FileStamp stamp = fd.stamp();
    return {
        .bytes = read_safetensors_header_bytes(fd), .file_bytes = stamp.n_bytes, .stamp = stamp};
  }
  const Fd fd = Fd::open_for_reading(file.saved_header);
  WeightsHeader header{.bytes = read_safetensors_header_bytes(fd), .file_bytes = 0};
  header.file_bytes = file_bytes_by_header(header.bytes, file.saved_header.string());
  return header;
}

CheckpointFiles::CheckpointFiles(std::vector<WeightsFile> files)
    : max_open_(open_limit()), slots_(files.size()) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    facts_.push_back(files[i].facts);
    slots_[i].file = std::move(files[i]);
  }
}

/// Keeps a descriptor open while it is read through. Opening happens under the lock: it is rare.
class CheckpointFiles::Lease {
 public:
  Lease(const CheckpointFiles& files, std::uint32_t file)
      : files_(files), slot_(files.slots_.at(file)) {
    const std::lock_guard lock(files_.mutex_);
    if (!slot_.fd.valid()) {
      if (files_.n_open_ >= files_.max_open_) files_.close_longest_unused();
      slot_.fd = Fd::open_for_reading(slot_.file.path);
      ++files_.n_open_;
    }
    ++slot_.users;
    slot_.last_use = ++files_.clock_;
  }
  ~Lease() {
    const std::lock_guard lock(files_.mutex_);
    --slot_.users;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  [[nodiscard]] const Fd& fd() const { return slot_.fd; }
  void require_unchanged() const {
    const auto& stamp = slot_.file.stamp;
    if (!stamp || slot_.fd.stamp() == *stamp) return;
    throw Error(ErrorCode::kMismatch,
                "was replaced or written to after its header was read (begin again when nothing "
                "changes it any more)")
        .in_file(slot_.file.path.string());
  }

 private:
  const CheckpointFiles& files_;
  Slot& slot_;
};

void CheckpointFiles::close_longest_unused() const {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (!slot.fd.valid() || slot.users != 0) continue;
    if (oldest == nullptr || slot.last_use < oldest->last_use) oldest = &slot;
  }
  if (oldest == nullptr) return;
  oldest->fd = Fd();
  --n_open_;
}

std::vector<std::byte> CheckpointFiles::header_bytes(std::uint32_t file) const {
  if (!has_data(file)) return read_weights_header(slots_.at(file).file).bytes;
  return read_safetensors_header_bytes(Lease(*this, file).fd());
}

bool CheckpointFiles::has_data(std::uint32_t file) const {
  return slots_.at(file).file.saved_header.empty();
}

void CheckpointFiles::read_file(std::uint32_t file, std::uint64_t offset,
                                std::span<std::byte> out) const {
  if (!has_data(file)) {
    throw Error(ErrorCode::kNotFound, "was consumed by an earlier run and cannot be read again")
        .in_file(facts_[file].name);
  }
  const Lease lease(*this, file);
  // The second time for what was written while it was read.
  lease.require_unchanged();
  lease.fd().read_exact(out, offset);
  lease.require_unchanged();
}

void CheckpointFiles::close_file(std::uint32_t file) const {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_.at(file);
  INGOT_CHECK(slot.users == 0);
  if (!slot.fd.valid()) return;
  slot.fd = Fd();
  --n_open_;
}

std::vector<WeightsFile> locate_files(const std::vector<std::string>& names,
                                      const std::filesystem::path& directory,
                                      const std::filesystem::path& consumed_headers) {
  std::vector<WeightsFile> files;
  for (const std::string& name : names) {
    WeightsFile& file = files.emplace_back();
    file.facts.name = name;
    file.path = directory / name;
    std::error_code failure;
    const bool is_here = std::filesystem::symlink_status(file.path, failure).type() !=
                         std::filesystem::file_type::not_found;
    if (!is_here && !consumed_headers.empty())
      file.saved_header = consumed_headers / (name + ".header");
  }
  return files;
}

std::vector<StoredTensor> read_headers(std::vector<WeightsFile>& files, std::size_t threads,
                                       ErrorList& faults) {
  std::vector<SafetensorsHeader> headers(files.size());
  std::vector<std::optional<Error>> failures(files.size());
  parallel_for(files.size(), std::max<std::size_t>(threads, 1), [&](std::size_t i) {
    try {
      const WeightsHeader raw = read_weights_header(files[i]);
      files[i].stamp = raw.stamp;
      headers[i] = parse_safetensors_header(raw.bytes, raw.file_bytes, files[i].facts.name);
    } catch (const Error& error) {
      failures[i] = error;
    }
  });
  std::size_t n_tensors = 0;
  for (const SafetensorsHeader& header : headers) n_tensors += header.tensors.size();
  std::vector<StoredTensor> stored;
  stored.reserve(n_tensors);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (failures[i]) faults.add(*failures[i]);
    files[i].facts.n_bytes = headers[i].file_bytes;
    files[i].facts.data_start = headers[i].data_start;
    for (StoredTensor& tensor : headers[i].tensors) {
      tensor.file = static_cast<std::uint32_t>(i);
      stored.push_back(std::move(tensor));
    }
    headers[i] = {};
  }
  return stored;
}

void read_headers(Draft& draft) {
  std::vector<WeightsFile> files =
      locate_files(draft.weights, draft.directory, draft.options.consumed_headers);
  draft.stored = read_headers(files, draft.options.threads, draft.faults);
  draft.is_complete = draft.is_complete && draft.faults.empty();
  draft.bytes = std::make_unique<CheckpointFiles>(std::move(files));
}

namespace {

/// Limit of the bytes of copies that are compared only for a report.
constexpr std::uint64_t kComparedBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kComparedAtOnce = std::uint64_t{4} << 20;

/// Copies of one tensor, by place in the list of all.
using Copies = std::span<const std::uint32_t>;

class CopyComparison {
 public:
  CopyComparison(const Draft& draft, bool may_read)
      : bytes_(may_read ? draft.bytes.get() : nullptr),
        stored_(draft.stored),
        is_limited_(!draft.options.merges_copies) {}

  /// Nullopt if they were not compared.
  std::optional<bool> are_equal(Copies copies) {
    const StoredTensor& first = stored_[copies.front()];
    for (const std::uint32_t other : copies.subspan(1)) {
      if (stored_[other].dtype != first.dtype || stored_[other].shape != first.shape) return false;
    }
    const std::uint64_t n_bytes = first.n_bytes;
    const auto is_here = [&](std::uint32_t i) { return bytes_->has_data(stored_[i].file); };
    if (bytes_ == nullptr || (is_limited_ && n_bytes > left_) ||
        !std::ranges::all_of(copies, is_here))
      return std::nullopt;
    left_ -= std::min(left_, n_bytes);
    return std::ranges::all_of(copies.subspan(1), [&](std::uint32_t other) {
      return have_same_bytes(first, stored_[other]);
    });
  }

 private:
  [[nodiscard]] bool have_same_bytes(const StoredTensor& a, const StoredTensor& b) const {
    for (std::uint64_t at = 0; at < a.n_bytes; at += kComparedAtOnce) {
      const std::uint64_t n = std::min(kComparedAtOnce, a.n_bytes - at);
      std::vector<std::byte> of_a(n), of_b(n);
      bytes_->read(0, a, at, of_a);
      bytes_->read(0, b, at, of_b);
      if (of_a != of_b) return false;
    }
    return true;
  }

  const StoredBytes* bytes_;
  std::span<const StoredTensor> stored_;
  bool is_limited_;
  std::uint64_t left_ = kComparedBytes;
};

// The remedy for copies.
std::string_view remedy_of(std::optional<bool> are_equal, bool has_indexed) {
  if (!are_equal) return "ingot repair leaves one out where their bytes are equal";
  if (*are_equal) return "their bytes are equal (ingot repair leaves one out)";
  return has_indexed ? "their bytes differ (fetch the files again, or ingot repair --allow "
                       "duplicate-tensor=PATTERN takes the copy that the index names)"
                     : "their bytes differ (fetch files and index again)";
}

}  // namespace

void resolve_duplicates(Draft& draft, bool may_read) {
  std::vector<StoredTensor>& stored = draft.stored;
  const std::span<const SourceFile> files = draft.bytes->files();
  CopyComparison comparison(draft, may_read);
  std::map<std::string_view, std::string_view> homes;  // files of tensors with copies, by the index
  std::vector<Copies> all;
  for (Copies left = draft.names().sorted(); !left.empty();) {
    const std::string& name = stored[left.front()].name;
    const auto end =
        std::ranges::find_if(left, [&](std::uint32_t i) { return stored[i].name != name; });
    const auto n = static_cast<std::size_t>(end - left.begin());
    if (n > 1) {
      all.push_back(left.first(n));
      homes.emplace(name, std::string_view());
    }
    left = left.subspan(n);
  }
  if (all.empty()) return;
  for (const auto& [tensor, file] : draft.index.weight_map) {
    if (const auto home = homes.find(tensor); home != homes.end()) home->second = file;
  }
  std::vector<bool> is_left_out(stored.size(), false);
  std::vector<std::string> settled;
  for (const Copies copies : all) {
    const std::string& name = stored[copies.front()].name;
    const auto indexed = std::ranges::find(copies, homes.at(name), [&](std::uint32_t i) {
      return std::string_view(files[stored[i].file].name);
    });
    const std::uint32_t kept = indexed == copies.end() ? copies.front() : *indexed;
    std::vector<std::string_view> holders;
    for (const std::uint32_t copy : copies) {
      is_left_out[copy] = copy != kept;
      if (copy != kept) holders.push_back(files[stored[copy].file].name);
    }
    const bool is_allowed =
        indexed != copies.end() && matches_any(draft.options.allow_duplicate, name);
    const std::optional<bool> are_equal = is_allowed ? std::nullopt : comparison.are_equal(copies);
    if (is_allowed || (draft.options.merges_copies && are_equal == true)) {
      settled.push_back(fmt::format("'{}'", name));
      continue;
    }
    draft.fault(stored[kept], ErrorCode::kDuplicate, "is also in {}{}; {}",
                fmt::join(holders, " and "),
                indexed == copies.end() ? std::string()
                                        : fmt::format(", {} names this file", draft.index.name),
                remedy_of(are_equal, indexed != copies.end()));
  }
  if (!settled.empty()) {
    draft.remarks.push_back(fmt::format(
        "{}{} stood in several files: one copy is taken", settled.front(),
        settled.size() == 1 ? std::string() : fmt::format(" and {} more", settled.size() - 1)));
  }
  std::size_t i = 0;
  std::erase_if(stored, [&](const StoredTensor&) { return is_left_out[i++]; });
  draft.forget_names();
}

namespace {

/// Names of tensors that the index gives to files which are not here or could not be read, sorted.
std::vector<std::string> lost_names(const CheckpointIndex& index,
                                    std::span<const SourceFile> files) {
  std::set<std::string_view> readable;
  for (const SourceFile& file : files) {
    if (file.data_start != 0) readable.insert(file.name);
  }
  std::vector<std::string> lost;
  for (const auto& [tensor, file] : index.weight_map) {
    if (!readable.contains(file)) lost.push_back(tensor);
  }
  std::sort(lost.begin(), lost.end());
  return lost;
}

// Names after the first: "; so it is with 'b', 'c' and 12 more".
std::string others_of(const std::vector<std::string_view>& names) {
  return names.size() < 2 ? std::string()
                          : "; so it is with " + list_text(std::span(names).subspan(1), 4, "'");
}

}  // namespace

void check_index(Draft& draft) {
  const CheckpointIndex& index = draft.index;
  const std::span<const SourceFile> files = draft.bytes->files();
  if (!draft.is_complete) draft.lost = lost_names(index, files);
  if (!draft.has_index) return;
  const std::span<const StoredTensor> stored = draft.stored;
  const StoredNames& names = draft.names();
  std::vector<bool> is_indexed(stored.size(), false);
  std::vector<std::string_view> misplaced, unnamed;
  std::string first_fact, first_file;
  for (const auto& [tensor, file] : index.weight_map) {
    const auto at = std::lower_bound(
        files.begin(), files.end(), file,
        [](const SourceFile& a, const std::string& name) { return a.name < name; });
    if (at == files.end() || at->name != file || at->data_start == 0) continue;
    const auto found = names.find(tensor);
    if (found) is_indexed[*found] = true;
    if (found && files[stored[*found].file].name == file) continue;
    if (misplaced.empty()) {
      first_file = file;
      first_fact = fmt::format(
          "{} says it is in this file, {}", index.name,
          found ? fmt::format("it is in {}", files[stored[*found].file].name) : "it is not there");
    }
    misplaced.push_back(tensor);
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_indexed[i] || names.find(stored[i].name) != i) continue;
    if (misplaced.empty() && unnamed.empty()) {
      first_file = files[stored[i].file].name;
      first_fact = fmt::format("is not named by {}", index.name);
    }
    unnamed.push_back(stored[i].name);
  }
  if (misplaced.empty() && unnamed.empty()) return;
  // All have one cause: the index is not of these files.
  const std::vector<std::string_view>& reported = misplaced.empty() ? unnamed : misplaced;
  const std::string also =
      misplaced.empty() || unnamed.empty()
          ? ""
          : fmt::format("; of the files' tensors it does not name '{}'{}", unnamed.front(),
                        unnamed.size() == 1 ? "" : fmt::format(" and {} more", unnamed.size() - 1));
  draft.faults.add(Error(ErrorCode::kMissingTensor, "{}{}{} (fetch index and file again; {})",
                         first_fact, others_of(reported), also, kIndexRemedy)
                       .in_file(first_file)
                       .in_tensor(reported.front()));
}

std::set<std::string_view> unreadable_files(std::span<const SourceFile> files) {
  std::set<std::string_view> unreadable;
  for (const SourceFile& file : files) {
    if (file.data_start == 0) unreadable.insert(file.name);
  }
  return unreadable;
}

namespace {

/// Tensors of a file; none where the header cannot be read, as such a file is no part of a model.
std::vector<StoredTensor> tensors_of(const std::filesystem::path& directory,
                                     const std::string& file) {
  std::vector<WeightsFile> located = locate_files({file}, directory, {});
  ErrorList ignored;
  return read_headers(located, 1, ignored);
}

/// A file of the model that no list has, and a tensor of it that is nowhere else.
struct LostFile {
  std::string name, tensor;
};

Error refusal_of_strays(const Draft& draft, const std::vector<LostFile>& lost) {
  const std::string others =
      lost.size() == 1 ? std::string() : fmt::format("; so it is with {} more", lost.size() - 1);
  const std::string& tensor = lost.front().tensor;
  const std::string fact =
      !draft.has_index
          ? fmt::format("is next to the weights without an index, and holds '{}'", tensor)
          : fmt::format("is not named by {}, nor is its tensor '{}'", draft.index.name, tensor);
  return Error(ErrorCode::kMissingTensor, "{}{} (fetch {}, or move the file away; {})", fact,
               others, kIndexName, kIndexRemedy)
      .in_file(lost.front().name);
}

void judge_strays(Draft& draft) {
  std::set<std::string> kinds;
  for (const StoredTensor& tensor : draft.stored) kinds.insert(name_kind(tensor.name));
  const NameGrammar grammar(*draft.family, draft.config);
  std::vector<LostFile> lost;
  for (const std::string& file : draft.strays) {
    const std::vector<StoredTensor> tensors = tensors_of(draft.directory, file);
    const auto ours = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return !draft.names().find(tensor.name) &&
             (kinds.contains(name_kind(tensor.name)) || grammar.match(tensor.name).has_value());
    });
    if (ours == tensors.end()) {
      draft.left_out.push_back({.path = file, .reason = kUnlistedWeights});
    } else {
      lost.push_back({.name = file, .tensor = ours->name});
    }
  }
  if (!lost.empty()) draft.faults.add(refusal_of_strays(draft, lost));
}

}  // namespace

void judge_stray_files(Draft& draft) {
  if (!draft.strays.empty()) judge_strays(draft);
  std::ranges::sort(draft.left_out, {}, &LeftOut::path);
  for (std::string& remark : left_out_remarks(draft.left_out))
    draft.remarks.push_back(std::move(remark));
}

}  // namespace ingot::formats
