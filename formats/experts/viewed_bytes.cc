#include "formats/experts/viewed_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/base/error.h"

namespace ingot::formats {

ViewedBytes::ViewedBytes(std::shared_ptr<const Checkpoint> source, std::vector<View> views)
    : source_(std::move(source)), views_(std::move(views)), is_whole_(source_->is_whole()) {
  for (const View& view : views_) {
    INGOT_CHECK(!view.pieces.empty());
    const auto file_of = [&](const ViewPiece& piece) {
      return source_->stored()[piece.stored].file;
    };
    is_whole_ = is_whole_ && std::ranges::all_of(view.pieces, [&](const ViewPiece& piece) {
                  return file_of(piece) == file_of(view.pieces.front());
                });
  }
}

void ViewedBytes::read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
                       std::span<std::byte> out) const {
  const View& view = views_.at(index);
  if (view.make != nullptr) {
    const std::vector<std::byte> made = view.make(*source_);
    INGOT_CHECK(offset <= made.size() && out.size() <= made.size() - offset);
    if (!out.empty()) std::memcpy(out.data(), made.data() + offset, out.size());
    return;
  }
  view.nest.gather(offset, out,
                   [&](std::uint32_t number, std::uint64_t at, std::span<std::byte> bytes) {
                     const ViewPiece& piece = view.pieces.at(number);
                     source_->read(piece.stored, piece.offset + at, bytes);
                   });
}

std::string ViewedBytes::home_file(std::uint32_t index) const {
  const std::uint32_t stored = views_.at(index).pieces.front().stored;
  return source_->is_whole() ? source_->files()[source_->stored()[stored].file].name
                             : source_->home_file(stored);
}

std::set<std::uint32_t> origins_of(const Checkpoint& checkpoint, std::uint32_t stored) {
  const auto* viewed = dynamic_cast<const ViewedBytes*>(&checkpoint.bytes());
  if (viewed == nullptr) return {stored};
  std::set<std::uint32_t> origins;
  for (const ViewPiece& piece : viewed->view(stored).pieces)
    origins.merge(origins_of(viewed->source(), piece.stored));
  return origins;
}

}  // namespace ingot::formats
