#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "formats/base/aligned_buffer.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"

namespace ingot::bench {

/// The weights files of directories, read by several threads into memory that stays in the cache:
/// the speed that no pass over them can beat.
class Reading {
 public:
  void add(const std::filesystem::path& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::uint64_t size = entry.file_size();
      for (std::uint64_t at = 0; at < size; at += kReadBytes)
        pieces_.push_back({files_.size(), at, std::min(kReadBytes, size - at)});
      files_.push_back(Fd::open_for_reading(entry.path()));
      n_bytes_ += size;
    }
  }
  void run(std::size_t threads) const {
    std::atomic<std::size_t> next = 0;
    run_workers(threads, [&](std::size_t) {
      const AlignedBuffer buffer(kReadBytes);
      for (std::size_t i = next++; i < pieces_.size(); i = next++) {
        const Piece& piece = pieces_[i];
        files_[piece.file].read_exact(buffer.span().first(piece.n_bytes), piece.offset);
      }
    });
  }
  [[nodiscard]] double gigabytes() const { return static_cast<double>(n_bytes_) / 1e9; }

 private:
  static constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
  /// A piece of a file.
  struct Piece {
    std::size_t file;
    std::uint64_t offset, n_bytes;
  };
  std::vector<Fd> files_;
  std::vector<Piece> pieces_;
  std::uint64_t n_bytes_ = 0;
};

}  // namespace ingot::bench
