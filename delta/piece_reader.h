#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <semaphore>
#include <span>

#include "delta/weights.h"
#include "formats/base/aligned_buffer.h"
#include "formats/base/fd.h"

namespace ingot::delta {

/// Turns to compute: so many threads have one at a time, and others wait for a disk.
using Turns = std::counting_semaphore<>;

/// Reads the tensors of a checkpoint piece by piece into one buffer: from the page cache those that
/// are in it, and others past it (direct I/O, which needs no copy by the kernel), many at a time,
/// where the file system can. From one thread, which has a turn and gives it up while it waits.
class PieceReader {
 public:
  PieceReader(const Weights& weights, Turns& turns);

  /// The most bytes of a piece, and those that are read at a time from a disk.
  static constexpr std::size_t kWindowBytes = std::size_t{4} << 20;
  /// Bytes of a tensor, until the next call; they may be written to. Throws as
  /// CheckpointFiles::read_file() does.
  std::span<std::byte> read(const formats::StoredTensor& tensor, std::uint64_t offset,
                            std::size_t n_bytes);

 private:
  void open(std::uint32_t file);
  [[nodiscard]] bool is_cached(std::uint64_t at) const;
  bool read_direct(std::uint64_t at, std::uint64_t end, std::size_t n_bytes);

  const Weights& weights_;
  Turns& turns_;
  AlignedBuffer buffer_;
  std::optional<std::uint32_t> file_;
  Fd cached_, direct_;
  // Places in the file: the first byte of the buffer, the next piece to be given, and the end of
  // the window. A piece is given once, since it may be written to.
  std::uint64_t begin_ = 0, next_ = 0, end_ = 0;
};

}  // namespace ingot::delta
