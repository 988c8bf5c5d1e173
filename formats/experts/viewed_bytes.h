#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// A range of a stored tensor, seen as a matrix: element (r, c) is number
/// first + r * row_step + c * col_step of the stored ones. All counts are elements.
struct ViewPiece {
  std::uint32_t stored = 0;  ///< of the source
  std::uint64_t first = 0;
  std::uint64_t rows = 1, cols = 1;
  std::uint64_t row_step = 0, col_step = 1;
};

/// A stored tensor that is made of pieces of one shape. Their rows follow one another, piece by
/// piece, or `n_in_turn` pieces give a row each in turn.
struct View {
  /// 4 for codes that are turned: then row_step is 1, `first`, col_step and cols are even.
  std::uint32_t element_bits = 8;
  std::uint32_t n_in_turn = 1;
  std::vector<ViewPiece> pieces;

  [[nodiscard]] std::uint64_t n_bytes() const;
};

/// Views of another checkpoint's stored tensors, gathered as they are read, in at most a few MiB
/// at a time.
class ViewedBytes final : public StoredBytes {
 public:
  /// A view per stored tensor. Each has pieces of at least one element.
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

 private:
  std::shared_ptr<const Checkpoint> source_;
  std::vector<View> views_;
  bool is_whole_;  // the source's tensors are, and each view is of one file
};

}  // namespace ingot::formats
