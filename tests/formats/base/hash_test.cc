#include "formats/base/hash.h"

#include <mutex>

#include <xxhash.h>

#include "formats/base/chunks.h"
#include "formats/base/error.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

using testing::bytes_of;
using testing::expect_error;

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937_64 random(n);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// The rule of the header, only from xxHash's one-shot function and byte shifts.
Hash128 specified_hash(std::span<const std::byte> bytes) {
  std::vector<unsigned char> sum;
  for (std::size_t at = 0; at < bytes.size(); at += std::size_t{4} << 20) {
    const std::size_t n = std::min(bytes.size() - at, std::size_t{4} << 20);
    const XXH128_hash_t chunk = XXH3_128bits(bytes.data() + at, n);
    for (int shift = 56; shift >= 0; shift -= 8) {
      sum.push_back(static_cast<unsigned char>(chunk.high64 >> shift));
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
      sum.push_back(static_cast<unsigned char>(chunk.low64 >> shift));
    }
  }
  for (int shift = 0; shift < 64; shift += 8) {
    sum.push_back(static_cast<unsigned char>(std::uint64_t{bytes.size()} >> shift));
  }
  const XXH128_hash_t whole = XXH3_128bits(sum.data(), sum.size());
  return {.high = whole.high64, .low = whole.low64};
}

TEST(Hash128, WritesHighWordFirstAsLowerCaseHex) {
  const Hash128 hash{.high = 0x0123456789abcdefULL, .low = 0xfULL};
  EXPECT_EQ(hash.hex(), "0123456789abcdef000000000000000f");
  EXPECT_EQ(Hash128::from_hex(hash.hex()), hash);
}

TEST(Hash128, RejectsAnythingButThirtyTwoLowerCaseDigits) {
  const std::string good = "0123456789abcdef000000000000000f";
  std::string upper = good;
  upper[10] = 'A';
  std::string late = good;
  late[31] = 'g';
  for (const std::string& text :
       {std::string(), good.substr(1), good + "0", upper, late, std::string("0x").append(good, 2),
        std::string(" ").append(good, 1)}) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kCorrupt, {"32 hexadecimal digits"}, [&] { Hash128::from_hex(text); });
  }
}

TEST(HashBytes, EqualsThePublishedXxh3Vectors) {
  // XXH3-128 of no bytes with seed 0, from the xxHash specification's reference implementation.
  EXPECT_EQ(hash_bytes({}).hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash_bytes(bytes_of("a")), hash_bytes(bytes_of("b")));
}

TEST(TensorHasher, FollowsTheSpecifiedCombination) {
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{240}, std::size_t{241}, kHashChunkBytes - 1,
        kHashChunkBytes, kHashChunkBytes + 1, 2 * kHashChunkBytes, 2 * kHashChunkBytes + 4097}) {
    const std::vector<std::byte> bytes = random_bytes(n);
    TensorHasher hasher;
    hasher.update(bytes);
    EXPECT_EQ(hasher.finish(), specified_hash(bytes)) << n;
  }
}

TEST(TensorHasher, DoesNotDependOnHowTheBytesArrive) {
  const std::vector<std::byte> bytes = random_bytes(2 * kHashChunkBytes + 12'345);
  const Hash128 expected = specified_hash(bytes);
  for (const std::size_t step : {std::size_t{1000}, std::size_t{1} << 20, kHashChunkBytes - 1,
                                 kHashChunkBytes + 1, bytes.size()}) {
    TensorHasher hasher;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      hasher.update(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      hasher.update({});
    }
    EXPECT_EQ(hasher.finish(), expected) << step;
  }
}

TEST(TensorHasher, SeesEveryByteAndTheLength) {
  std::vector<std::byte> bytes(kHashChunkBytes + 8);
  const Hash128 zeros = specified_hash(bytes);
  TensorHasher longer;
  longer.update(bytes);
  longer.update(bytes_of(std::string(1, '\0')));
  EXPECT_NE(longer.finish(), zeros);
  for (const std::size_t at :
       {std::size_t{0}, kHashChunkBytes - 1, kHashChunkBytes, bytes.size() - 1}) {
    bytes[at] = std::byte{1};
    TensorHasher hasher;
    hasher.update(bytes);
    EXPECT_NE(hasher.finish(), zeros) << at;
    bytes[at] = std::byte{0};
  }
}

TEST(Sha256, EqualsTheVectorsOfFips180) {
  const auto sha256 = [](std::string_view text) {
    Sha256 hasher;
    hasher.update(bytes_of(text));
    return hasher.finish_hex();
  };
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, MayBeFedInPieces) {
  Sha256 hasher;
  for (const char* piece : {"a", "", "b", "c"}) hasher.update(bytes_of(piece));
  EXPECT_EQ(hasher.finish_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

constexpr std::uint64_t kChunk = kHashChunkBytes;

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
