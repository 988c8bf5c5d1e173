#include "formats/base/hash.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>
#ifdef INGOT_XXHASH_DISPATCHES
// Its macros put the run-time dispatch in place of the plain functions.
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
  Hash128 hash;
  const auto digit = [&](char c) -> std::uint64_t {
    if (c >= '0' && c <= '9') return static_cast<std::uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<std::uint64_t>(c - 'a') + 10;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("'{}' is not a hash of 32 hexadecimal digits", text));
  };
  if (text.size() != 32) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("'{}' is not a hash of 32 hexadecimal digits", text));
  }
  for (std::size_t i = 0; i < 16; ++i) hash.high = hash.high << 4 | digit(text[i]);
  for (std::size_t i = 16; i < 32; ++i) hash.low = hash.low << 4 | digit(text[i]);
  return hash;
}

Hash128 hash_bytes(std::span<const std::byte> bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}

struct TensorHasher::State {
  XXH3_state_t* chunk = XXH3_createState();
  XXH3_state_t* whole = XXH3_createState();
  std::size_t in_chunk = 0;
  std::uint64_t total = 0;

  State() {
    INGOT_CHECK(chunk != nullptr && whole != nullptr);
    XXH3_128bits_reset(chunk);
    XXH3_128bits_reset(whole);
  }
  ~State() {
    XXH3_freeState(chunk);
    XXH3_freeState(whole);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void close_chunk() {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(chunk));
    XXH3_128bits_update(whole, canonical.digest, sizeof canonical.digest);
    XXH3_128bits_reset(chunk);
    in_chunk = 0;
  }
};

TensorHasher::TensorHasher() : state_(std::make_unique<State>()) {}
TensorHasher::~TensorHasher() = default;
TensorHasher::TensorHasher(TensorHasher&&) noexcept = default;
TensorHasher& TensorHasher::operator=(TensorHasher&&) noexcept = default;

void TensorHasher::update(std::span<const std::byte> bytes) {
  state_->total += bytes.size();
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kHashChunkBytes - state_->in_chunk);
    XXH3_128bits_update(state_->chunk, bytes.data(), n);
    state_->in_chunk += n;
    bytes = bytes.subspan(n);
    if (state_->in_chunk == kHashChunkBytes) state_->close_chunk();
  }
}

Hash128 TensorHasher::finish() {
  if (state_->in_chunk != 0) state_->close_chunk();
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<unsigned char>(state_->total >> (8 * i));
  }
  XXH3_128bits_update(state_->whole, length.data(), length.size());
  return from_xxh(XXH3_128bits_digest(state_->whole));
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() {
    INGOT_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  INGOT_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish_hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int n = 0;
  INGOT_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &n) == 1);
  std::string text;
  for (unsigned int i = 0; i < n; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace ingot
