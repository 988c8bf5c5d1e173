#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/places/nest.h"

namespace ingot::formats {

/// A stored tensor of the source, from a byte of it on.
struct ViewPiece {
  std::uint32_t stored = 0;
  std::uint64_t offset = 0;
};

/// A stored tensor that is made of pieces of others.
struct View {
  Nest nest;
  std::vector<ViewPiece> pieces;
  /// Makes all bytes of a small tensor, where they are computed and not gathered; then the pieces
  /// only say of which tensors, or at whose place. Null: they are gathered.
  std::function<std::vector<std::byte>(const Checkpoint& source)> make = nullptr;
  DType made_dtype{};  ///< dtype of what is made
};

/// Views of another checkpoint's stored tensors, gathered or made as they are read.
class ViewedBytes final : public StoredBytes {
 public:
  /// A view per stored tensor. Each has a piece at least.
  ViewedBytes(std::shared_ptr<const Checkpoint> source, std::vector<View> views);

  [[nodiscard]] std::span<const SourceFile> files() const override { return source_->files(); }
  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return source_->header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return source_->has_data(file); }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    source_->read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const override { source_->close_file(file); }
  [[nodiscard]] bool is_whole() const override { return is_whole_; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override;
  [[nodiscard]] const CheckpointFiles* on_disk() const override {
    return source_->bytes().on_disk();
  }
  [[nodiscard]] const Checkpoint& source() const { return *source_; }
  [[nodiscard]] const View& view(std::uint32_t index) const { return views_.at(index); }

 private:
  std::shared_ptr<const Checkpoint> source_;
  std::vector<View> views_;
  bool is_whole_;  // the source's tensors are, and each view is of one file
};

/// The stored tensors that a stored tensor is gathered from, through all views: of the checkpoint
/// behind the last. Ascending.
std::set<std::uint32_t> origins_of(const Checkpoint& checkpoint, std::uint32_t stored);

}  // namespace ingot::formats
