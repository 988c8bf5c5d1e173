#include "formats/checkpoint/checkpoint_files.h"

#include <algorithm>

#include <sys/resource.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"

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
    if (!stamp || stamp->is_unwritten(slot_.fd.stamp())) return;
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

}  // namespace ingot::formats
