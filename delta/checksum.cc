#include "delta/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/hash.h"

// BLAKE3 is here after its specification (section 2), since Debian 12 has no library of it; sums of
// tensors are computed on many threads, so the plain form is enough.

namespace ingot::delta {

struct Checksum::Sum {
  Sum() = default;
  Sum(const Sum&) = delete;
  Sum& operator=(const Sum&) = delete;
  virtual ~Sum() = default;
  virtual void update(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual std::string finish() = 0;
};

namespace {

constexpr std::array kChecksums = {
    ChecksumRow{ChecksumKind::kXxh3, "xxh3-128", 32},
    ChecksumRow{ChecksumKind::kBlake3, "blake3", 64},
    ChecksumRow{ChecksumKind::kAdler32, "adler32", 8},
};

class Xxh3Sum final : public Checksum::Sum {
 public:
  void update(std::span<const std::byte> bytes) override { hasher_.update(bytes); }
  std::string finish() override { return hasher_.finish().hex(); }

 private:
  ChunkHasher hasher_;
};

class Adler32Sum final : public Checksum::Sum {
 public:
  void update(std::span<const std::byte> bytes) override {
    // So many bytes of 255 leave the sums within 32 bits.
    constexpr std::size_t kRun = 5552;
    constexpr std::uint32_t kPrime = 65521;
    while (!bytes.empty()) {
      const auto run = bytes.first(std::min(kRun, bytes.size()));
      for (const std::byte byte : run) {
        low_ += std::to_integer<std::uint32_t>(byte);
        high_ += low_;
      }
      low_ %= kPrime;
      high_ %= kPrime;
      bytes = bytes.subspan(run.size());
    }
  }
  std::string finish() override { return fmt::format("{:04x}{:04x}", high_, low_); }

 private:
  std::uint32_t low_ = 1, high_ = 0;
};

using ChainingValue = std::array<std::uint32_t, 8>;
using Words = std::array<std::uint32_t, 16>;

constexpr ChainingValue kBlakeStart = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                       0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::size_t kBlakeBlock = 64, kBlakeChunk = 1024;
constexpr std::uint32_t kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8;

void mix(Words& v, std::size_t a, std::size_t b, std::size_t c, std::size_t d, std::uint32_t x,
         std::uint32_t y) {
  v[a] = v[a] + v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] = v[c] + v[d];
  v[b] = std::rotr(v[b] ^ v[c], 12);
  v[a] = v[a] + v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 8);
  v[c] = v[c] + v[d];
  v[b] = std::rotr(v[b] ^ v[c], 7);
}

// The compression function; its first eight words are a chaining value.
ChainingValue compress(const ChainingValue& value, Words block, std::uint64_t counter,
                       std::uint32_t n_bytes, std::uint32_t flags) {
  Words v{};
  std::copy(value.begin(), value.end(), v.begin());
  std::copy_n(kBlakeStart.begin(), 4, v.begin() + 8);
  v[12] = static_cast<std::uint32_t>(counter);
  v[13] = static_cast<std::uint32_t>(counter >> 32);
  v[14] = n_bytes;
  v[15] = flags;
  constexpr std::array<std::size_t, 16> kOrder = {2, 6,  3,  10, 7, 0,  4,  13,
                                                  1, 11, 12, 5,  9, 14, 15, 8};
  for (int round = 0; round < 7; ++round) {
    mix(v, 0, 4, 8, 12, block[0], block[1]);
    mix(v, 1, 5, 9, 13, block[2], block[3]);
    mix(v, 2, 6, 10, 14, block[4], block[5]);
    mix(v, 3, 7, 11, 15, block[6], block[7]);
    mix(v, 0, 5, 10, 15, block[8], block[9]);
    mix(v, 1, 6, 11, 12, block[10], block[11]);
    mix(v, 2, 7, 8, 13, block[12], block[13]);
    mix(v, 3, 4, 9, 14, block[14], block[15]);
    Words next{};
    for (std::size_t i = 0; i < 16; ++i) next[i] = block[kOrder[i]];
    block = next;
  }
  ChainingValue out{};
  for (std::size_t i = 0; i < 8; ++i) out[i] = v[i] ^ v[i + 8];
  return out;
}

class Blake3Sum final : public Checksum::Sum {
 public:
  void update(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      // A full block waits until it is known whether it is the last one.
      if (n_block_ == kBlakeBlock) close_block();
      const std::size_t n = std::min(kBlakeBlock - n_block_, bytes.size());
      std::memcpy(block_.data() + n_block_, bytes.data(), n);
      n_block_ += n;
      bytes = bytes.subspan(n);
    }
  }

  std::string finish() override {
    // The last block of a chunk, then the parents of it: the topmost one is the root.
    std::uint32_t flags = kChunkEnd | (n_blocks_ == 0 ? kChunkStart : 0);
    ChainingValue value = value_;
    Words words = block_words();
    std::uint64_t counter = n_chunks_;
    auto n_bytes = static_cast<std::uint32_t>(n_block_);
    for (; !waiting_.empty(); waiting_.pop_back()) {
      const ChainingValue right = compress(value, words, counter, n_bytes, flags);
      words = both(waiting_.back(), right);
      value = kBlakeStart;
      counter = 0;
      n_bytes = kBlakeBlock;
      flags = kParent;
    }
    std::string text;
    for (const std::uint32_t word : compress(value, words, counter, n_bytes, flags | kRoot))
      text += fmt::format("{:08x}", __builtin_bswap32(word));
    return text;
  }

 private:
  [[nodiscard]] Words block_words() const {
    Words words{};
    std::memcpy(words.data(), block_.data(), n_block_);
    return words;
  }
  static Words both(const ChainingValue& left, const ChainingValue& right) {
    Words words{};
    std::copy(left.begin(), left.end(), words.begin());
    std::copy(right.begin(), right.end(), words.begin() + 8);
    return words;
  }

  void close_block() {
    const bool is_last = n_blocks_ + 1 == kBlakeChunk / kBlakeBlock;
    value_ = compress(value_, block_words(), n_chunks_, static_cast<std::uint32_t>(n_block_),
                      (n_blocks_ == 0 ? kChunkStart : 0) | (is_last ? kChunkEnd : 0));
    n_block_ = 0;
    ++n_blocks_;
    if (!is_last) return;
    ++n_chunks_;
    // Subtrees of the same size are joined: as many as the number of chunks has zeros at its end.
    ChainingValue joined = value_;
    for (std::uint64_t n = n_chunks_; n % 2 == 0; n /= 2) {
      joined = compress(kBlakeStart, both(waiting_.back(), joined), 0, kBlakeBlock, kParent);
      waiting_.pop_back();
    }
    waiting_.push_back(joined);
    value_ = kBlakeStart;
    n_blocks_ = 0;
  }

  ChainingValue value_ = kBlakeStart;
  std::array<std::byte, kBlakeBlock> block_{};
  std::size_t n_block_ = 0, n_blocks_ = 0;
  std::uint64_t n_chunks_ = 0;
  std::vector<ChainingValue> waiting_;  // of subtrees that have no partner yet
};

}  // namespace

std::span<const ChecksumRow> checksums() {
  return kChecksums;
}

const ChecksumRow& checksum_row(ChecksumKind kind) {
  return *std::ranges::find(kChecksums, kind, &ChecksumRow::kind);
}

const ChecksumRow* find_checksum(std::string_view name) {
  const auto* found = std::ranges::find(kChecksums, name, &ChecksumRow::name);
  return found == kChecksums.end() ? nullptr : found;
}

Checksum::Checksum(ChecksumKind kind) {
  switch (kind) {
    case ChecksumKind::kXxh3:
      sum_ = std::make_unique<Xxh3Sum>();
      return;
    case ChecksumKind::kBlake3:
      sum_ = std::make_unique<Blake3Sum>();
      return;
    case ChecksumKind::kAdler32:
      sum_ = std::make_unique<Adler32Sum>();
      return;
  }
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(std::span<const std::byte> bytes) {
  sum_->update(bytes);
}

std::string Checksum::finish() {
  return sum_->finish();
}

}  // namespace ingot::delta
