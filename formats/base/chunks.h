#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "formats/base/hash.h"

// Many runs of bytes, cut into chunks that threads read in any order: one run of gigabytes keeps as
// many of them busy as a thousand small ones.

namespace ingot {

/// Bytes that a thread reads at a time, which stay in its cache until they have been processed.
inline constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

/// A part of one run: at most kHashChunkBytes, at a multiple of that.
struct Chunk {
  std::size_t run = 0;
  std::uint64_t offset = 0;  ///< within the run
  std::uint64_t n_bytes = 0;
  /// Number of the chunk among those of its run.
  [[nodiscard]] std::size_t index() const {
    return static_cast<std::size_t>(offset / kHashChunkBytes);
  }
};

/// How many chunks a run of so many bytes has.
std::size_t count_chunks(std::uint64_t n_bytes);

/// Calls body(chunk, memory) for every chunk of runs of these lengths, in any order, on at most
/// `threads` threads of its own. Each thread has a `memory` of kPieceBytes for itself. Chunks begin
/// in order, and none begins after a failure. Rethrows the failure of the first chunk that failed.
void for_each_chunk(std::span<const std::uint64_t> run_bytes, std::size_t threads,
                    const std::function<void(const Chunk&, std::span<std::byte>)>& body);

/// Calls look(bytes, offset) with the pieces of a chunk in their order; `read(offset, out)` gives
/// bytes of the run. Asks the StopScope before each.
void for_each_piece(const Chunk& chunk, std::span<std::byte> memory,
                    const std::function<void(std::uint64_t, std::span<std::byte>)>& read,
                    const std::function<void(std::span<const std::byte>, std::uint64_t)>& look);

/// The tensor hash of a run of `n_bytes` whose chunks have these hashes.
Hash128 hash_of_chunks(std::span<const Hash128> chunks, std::uint64_t n_bytes);

}  // namespace ingot
