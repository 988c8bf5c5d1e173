#include "formats/base/hash.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>
// Asks OpenSSL for the functions of 1.1.0, since newer ones bring the whole library into a program.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>
#ifdef INGOT_XXHASH_DISPATCHES
// Macros of this header put the run-time dispatch in place of the plain functions.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "formats/base/error.h"

namespace ingot {
namespace {

Hash128 from_xxh(XXH128_hash_t hash) {
  return {.high = hash.high64, .low = hash.low64};
}

}  // namespace

std::string Hash128::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Hash128 Hash128::from_hex(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 32 || text.find_first_not_of(kDigits) != std::string_view::npos)
    throw Error(ErrorCode::kCorrupt, "'{}' is not a hash of 32 hexadecimal digits", text);
  Hash128 hash;
  for (std::size_t i = 0; i < 16; ++i) {
    hash.high = hash.high << 4 | kDigits.find(text[i]);
    hash.low = hash.low << 4 | kDigits.find(text[16 + i]);
  }
  return hash;
}

std::array<std::byte, 16> Hash128::bytes() const {
  std::array<std::byte, 16> bytes{};
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::byte>(low >> (56 - 8 * i));
  }
  return bytes;
}

Hash128 hash_bytes(std::span<const std::byte> bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}

void ChunkHasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

ChunkHasher::ChunkHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  reset();
}

void ChunkHasher::reset() {
  XXH3_128bits_reset(state_.get());
}

void ChunkHasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

Hash128 ChunkHasher::finish() const {
  return from_xxh(XXH3_128bits_digest(state_.get()));
}

void TensorHasher::close_chunk() {
  whole_.update(chunk_.finish().bytes());
  chunk_.reset();
  in_chunk_ = 0;
}

void TensorHasher::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kHashChunkBytes - in_chunk_);
    chunk_.update(bytes.first(n));
    in_chunk_ += n;
    bytes = bytes.subspan(n);
    if (in_chunk_ == kHashChunkBytes) close_chunk();
  }
}

Hash128 TensorHasher::finish() {
  if (in_chunk_ != 0) close_chunk();
  whole_.update(std::as_bytes(std::span(&total_, 1)));
  return whole_.finish();
}

void Sha256::Free::operator()(SHA256state_st* state) const {
  delete state;
}

Sha256::Sha256() : state_(new SHA256_CTX) {
  INGOT_CHECK(SHA256_Init(state_.get()) == 1);
}

void Sha256::update(std::span<const std::byte> bytes) {
  INGOT_CHECK(SHA256_Update(state_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish_hex() {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  INGOT_CHECK(SHA256_Final(digest.data(), state_.get()) == 1);
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace ingot
