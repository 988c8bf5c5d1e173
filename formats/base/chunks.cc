#include "formats/base/chunks.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

#include "formats/base/aligned_buffer.h"
#include "formats/base/checked.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"

namespace ingot {

std::size_t count_chunks(std::uint64_t n_bytes) {
  return static_cast<std::size_t>(ceil_div(n_bytes, kHashChunkBytes));
}

void for_each_chunk(std::span<const std::uint64_t> run_bytes, std::size_t threads,
                    const std::function<void(const Chunk&, std::span<std::byte>)>& body) {
  // The number of the first chunk of each run.
  std::vector<std::size_t> first(run_bytes.size() + 1, 0);
  for (std::size_t run = 0; run < run_bytes.size(); ++run)
    first[run + 1] = first[run] + count_chunks(run_bytes[run]);
  const auto chunk_at = [&](std::size_t number) {
    const auto after = std::upper_bound(first.begin(), first.end(), number);
    const auto run = static_cast<std::size_t>(after - first.begin()) - 1;
    const std::uint64_t offset = std::uint64_t{number - first[run]} * kHashChunkBytes;
    return Chunk{.run = run,
                 .offset = offset,
                 .n_bytes = std::min<std::uint64_t>(kHashChunkBytes, run_bytes[run] - offset)};
  };

  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::mutex mutex;
  std::size_t failed_at = first.back();
  std::exception_ptr failure;
  run_workers(std::min(std::max<std::size_t>(threads, 1), first.back()), [&](std::size_t) {
    const AlignedBuffer memory(kPieceBytes);
    while (!has_failed.load(std::memory_order_relaxed)) {
      const std::size_t number = next++;
      if (number >= first.back()) return;
      try {
        body(chunk_at(number), memory.span());
      } catch (...) {
        const std::lock_guard lock(mutex);
        has_failed = true;
        // Chunks begin in their order, so the earliest chunk that fails always comes here.
        if (number < failed_at) {
          failed_at = number;
          failure = std::current_exception();
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void for_each_piece(const Chunk& chunk, std::span<std::byte> memory,
                    const std::function<void(std::uint64_t, std::span<std::byte>)>& read,
                    const std::function<void(std::span<const std::byte>, std::uint64_t)>& look) {
  for (std::uint64_t done = 0; done < chunk.n_bytes; done += kPieceBytes) {
    const auto n_bytes = std::min<std::uint64_t>(kPieceBytes, chunk.n_bytes - done);
    const auto piece = memory.first(static_cast<std::size_t>(n_bytes));
    StopScope::check();
    read(chunk.offset + done, piece);
    look(piece, chunk.offset + done);
  }
}

Hash128 hash_of_chunks(std::span<const Hash128> chunks, std::uint64_t n_bytes) {
  ChunkHasher whole;
  for (const Hash128& chunk : chunks) whole.update(chunk.bytes());
  whole.update(std::as_bytes(std::span(&n_bytes, 1)));
  return whole.finish();
}

}  // namespace ingot
