#include "verify/calibrate/planned_file.h"

#include <algorithm>

#include <fcntl.h>

#include "formats/base/chunks.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"

namespace ingot::verify {

PlannedFile::PlannedFile(std::vector<formats::TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata) {
  std::ranges::sort(tensors, [](const formats::TensorSpec& a, const formats::TensorSpec& b) {
    return formats::writes_before(a.dtype, a.name, b.dtype, b.name);
  });
  header_ = metadata.empty() ? formats::safetensors_header_text(tensors)
                             : formats::safetensors_header_text(tensors, metadata);
  n_bytes_ = header_.size();
  for (const formats::TensorSpec& tensor : tensors) {
    const std::uint64_t n_bytes = formats::byte_count(tensor.dtype, tensor.shape).value();
    places_.emplace(tensor.name, Place{.offset = n_bytes_, .n_bytes = n_bytes});
    open_.emplace(tensor.name, n_bytes);
    n_bytes_ += n_bytes;
  }
}

void PlannedFile::create(const Folder& folder, const std::string& name) {
  file_ = folder.replace(name, O_RDWR);
  file_.reserve(n_bytes_);
  file_.write_exact(std::as_bytes(std::span(header_)), 0);
}

void PlannedFile::open(const Folder& folder, const std::string& name) {
  file_ = folder.open(name, O_RDWR);
  std::string header(header_.size(), '\0');
  if (file_.size() == n_bytes_) file_.read_exact(std::as_writable_bytes(std::span(header)), 0);
  if (header == header_) return;
  throw Error(ErrorCode::kCorrupt, "is not the file that this calibration began (begin anew)")
      .in_file(file_.path());
}

void PlannedFile::put(const std::string& tensor, std::span<const std::byte> bytes,
                      std::uint64_t offset) {
  const Place& place = places_.at(tensor);
  INGOT_CHECK(offset <= place.n_bytes && bytes.size() <= place.n_bytes - offset);
  file_.write_exact(bytes, place.offset + offset);
  if (const auto found = open_.find(tensor); found != open_.end()) {
    found->second -= std::min<std::uint64_t>(found->second, bytes.size());
    if (found->second == 0) open_.erase(found);
  }
}

std::vector<std::byte> PlannedFile::read(const std::string& tensor) const {
  const Place& place = places_.at(tensor);
  std::vector<std::byte> bytes(place.n_bytes);
  file_.read_exact(bytes, place.offset);
  return bytes;
}

Hash128 PlannedFile::hash() const {
  TensorHasher hasher;
  std::vector<std::byte> piece(kHashChunkBytes);
  for (std::uint64_t at = 0; at < n_bytes_; at += piece.size()) {
    StopScope::check();
    const auto some = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), n_bytes_ - at)));
    file_.read_exact(some, at);
    hasher.update(some);
  }
  return hasher.finish();
}

}  // namespace ingot::verify
