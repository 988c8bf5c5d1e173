#include "formats/base/chunks.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "tests/support/expect_error.h"

namespace ingot {
namespace {

using testing::expect_error;

constexpr std::uint64_t kChunk = kHashChunkBytes;

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937_64 random(n);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Chunks, CoverEveryRunOnceAndNothingElse) {
  const std::vector<std::uint64_t> runs = {0, 1, kChunk, 0, kChunk + 1, 3 * kChunk - 5, 0};
  for (const std::size_t threads : {1U, 2U, 7U}) {
    std::mutex mutex;
    std::vector<std::vector<Chunk>> seen(runs.size());
    for_each_chunk(runs, threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
      EXPECT_EQ(memory.size(), kPieceBytes);
      const std::lock_guard lock(mutex);
      seen[chunk.run].push_back(chunk);
    });
    for (std::size_t run = 0; run < runs.size(); ++run) {
      std::ranges::sort(seen[run], {}, &Chunk::offset);
      ASSERT_EQ(seen[run].size(), count_chunks(runs[run]));
      std::uint64_t end = 0;
      for (const Chunk& chunk : seen[run]) {
        EXPECT_EQ(chunk.offset, end);
        EXPECT_EQ(chunk.index() * kChunk, chunk.offset);
        end += chunk.n_bytes;
      }
      EXPECT_EQ(end, runs[run]);
    }
  }
}

TEST(Chunks, HashOfChunksIsTheTensorHash) {
  for (const std::size_t n_bytes :
       {std::size_t{0}, std::size_t{1}, kPieceBytes + 1, kHashChunkBytes, kHashChunkBytes + 3}) {
    const std::vector<std::byte> bytes = random_bytes(n_bytes);
    TensorHasher whole;
    whole.update(bytes);
    const std::uint64_t run = n_bytes;
    std::vector<Hash128> hashes(count_chunks(n_bytes));
    for_each_chunk({&run, 1}, 2, [&](const Chunk& chunk, std::span<std::byte> memory) {
      ChunkHasher hasher;
      for_each_piece(
          chunk, memory,
          [&](std::uint64_t offset, std::span<std::byte> out) {
            std::memcpy(out.data(), bytes.data() + offset, out.size());
          },
          [&](std::span<const std::byte> piece, std::uint64_t) { hasher.update(piece); });
      hashes[chunk.index()] = hasher.finish();
    });
    EXPECT_EQ(hash_of_chunks(hashes, n_bytes), whole.finish()) << n_bytes;
  }
}

TEST(Chunks, RethrowTheFailureOfTheFirstChunk) {
  const std::vector<std::uint64_t> runs(40, 1);
  for (const std::size_t threads : {1U, 2U, 8U}) {
    expect_error(ErrorCode::kCorrupt, {"run 3"}, [&] {
      for_each_chunk(runs, threads, [&](const Chunk& chunk, std::span<std::byte>) {
        if (chunk.run >= 3)
          throw Error(ErrorCode::kCorrupt, "run " + std::to_string(chunk.run) + " is bad");
      });
    });
  }
}

}  // namespace
}  // namespace ingot
