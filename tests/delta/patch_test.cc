#include "delta/patch.h"

#include <memory>
#include <numeric>

#include <zstd.h>

#include "tests/support/expect_error.h"
#include "tests/support/test.h"

namespace ingot::delta {
namespace {

using Bytes = std::vector<std::byte>;

ReadBytes reader_of(const Bytes& bytes) {
  return [&bytes](std::uint64_t offset, std::span<std::byte> out) {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  };
}

ReadPiece pieces_of(const Bytes& bytes) {
  return [&bytes, piece = std::make_shared<Bytes>()](std::uint64_t offset, std::size_t n) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    piece->assign(begin, begin + static_cast<std::ptrdiff_t>(n));
    return std::span(*piece);
  };
}

struct Made {
  Bytes payload;
  TensorDifference difference;
};

Made make(const Bytes& before, const Bytes& after, DeltaEncoding encoding,
          std::size_t threads = 1) {
  Made made;
  made.difference =
      DifferenceWriter(encoding, ChecksumKind::kXxh3, threads)
          .write({before.size(), pieces_of(before), pieces_of(after)},
                 [&](std::span<const std::byte> bytes) {
                   made.payload.insert(made.payload.end(), bytes.begin(), bytes.end());
                 });
  return made;
}

Bytes patched(Bytes bytes, const Bytes& payload, DeltaEncoding encoding, std::size_t piece) {
  const auto patch = Patch::open(encoding, bytes.size(), reader_of(payload), payload.size());
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    patch->apply(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
  patch->finish();
  return bytes;
}

Hash128 tensor_hash(const Bytes& bytes) {
  TensorHasher hasher;
  hasher.update(bytes);
  return hasher.finish();
}

std::uint64_t n_changed(const Bytes& before, const Bytes& after) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < before.size(); ++i) n += before[i] == after[i] ? 0U : 1U;
  return n;
}

constexpr std::array kEncodings = {DeltaEncoding::kXor, DeltaEncoding::kOverwrite};

// Changes at both ends, across the pieces of a MiB, and far behind the first.
TEST(PatchTest, ADifferenceMakesTheNewBytesAgain) {
  std::mt19937 draw(7);
  Bytes before(3'500'000);
  for (std::byte& byte : before) byte = static_cast<std::byte>(draw());
  for (const std::size_t step : {1U, 97U, 400'000U, 3'499'999U}) {
    Bytes after = before;
    for (std::size_t i = step == 400'000U ? 2'000'000U : 0U; i < after.size(); i += step)
      after[i] ^= std::byte{5};
    for (const DeltaEncoding encoding : kEncodings) {
      const Made made = make(before, after, encoding);
      EXPECT_EQ(made.difference.n_payload, made.payload.size());
      EXPECT_EQ(made.difference.n_changed, n_changed(before, after));
      EXPECT_EQ(made.difference.old_hash, tensor_hash(before));
      EXPECT_EQ(made.difference.new_hash, tensor_hash(after));
      EXPECT_EQ(made.difference.checksum, hash_bytes(after).hex());
      for (const std::size_t piece : {std::size_t{4096}, std::size_t{1} << 20})
        EXPECT_TRUE(patched(before, made.payload, encoding, piece) == after) << step;
    }
  }
}

TEST(PatchTest, EqualBytesHaveNoPayload) {
  const Bytes bytes(5000, std::byte{3});
  for (const DeltaEncoding encoding : kEncodings) {
    const Made made = make(bytes, bytes, encoding);
    EXPECT_TRUE(made.payload.empty());
    EXPECT_EQ(made.difference.n_changed, 0U);
    EXPECT_EQ(made.difference.old_hash, made.difference.new_hash);
  }
}

TEST(PatchTest, EveryCutOfAPayloadIsRefused) {
  Bytes before(3000), after(3000);
  for (std::size_t i = 0; i < after.size(); i += 7) after[i] = static_cast<std::byte>(i);
  for (const DeltaEncoding encoding : kEncodings) {
    const Made made = make(before, after, encoding);
    for (std::size_t n = 0; n < made.payload.size(); ++n) {
      const Bytes cut(made.payload.begin(), made.payload.begin() + static_cast<std::ptrdiff_t>(n));
      testing::expect_error(ErrorCode::kCorrupt, "its payload",
                            [&] { patched(before, cut, encoding, 1000); });
    }
    Bytes longer = made.payload;
    longer.push_back(std::byte{0});
    testing::expect_error(ErrorCode::kCorrupt, "its payload",
                          [&] { patched(before, longer, encoding, 1000); });
  }
}

TEST(PatchTest, LargeFramesAreOneWithAnyThreads) {
  Bytes before((std::size_t{64} << 20) + 12'345), after = before;
  for (std::size_t i = 0, step = 1; i < after.size(); i += step, step = step * 7 % 4001)
    after[i] = static_cast<std::byte>(1 + i % 3);
  const Made one = make(before, after, DeltaEncoding::kXor);
  for (const std::size_t threads : {std::size_t{2}, std::size_t{9}})
    EXPECT_EQ(make(before, after, DeltaEncoding::kXor, threads).payload, one.payload) << threads;
  EXPECT_EQ(ZSTD_findFrameCompressedSize(one.payload.data(), one.payload.size()),
            one.payload.size());
  EXPECT_EQ(ZSTD_getFrameContentSize(one.payload.data(), one.payload.size()), before.size());
  EXPECT_EQ(patched(before, one.payload, DeltaEncoding::kXor, 1 << 20), after);
}

}  // namespace
}  // namespace ingot::delta
