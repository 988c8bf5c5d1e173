#include "formats/stored_hashes.h"

#include <algorithm>

#include "formats/base/parallel.h"

namespace ingot::formats {

Hash128 hash_range(std::uint64_t n_bytes,
                   const std::function<void(std::uint64_t, std::span<std::byte>)>& read) {
  TensorHasher hasher;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kHashChunkBytes, n_bytes)));
  for (std::uint64_t offset = 0; offset < n_bytes; offset += buffer.size()) {
    const auto bytes = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), n_bytes - offset)));
    read(offset, bytes);
    hasher.update(bytes);
  }
  return hasher.finish();
}

std::vector<HashedTensor> hash_stored(const Checkpoint& checkpoint, std::size_t threads) {
  const auto stored = checkpoint.stored();
  std::vector<HashedTensor> hashed(stored.size());
  parallel_for(stored.size(), threads, [&](std::size_t i) {
    try {
      if (!checkpoint.has_data(stored[i].file)) return;
      hashed[i].hash =
          hash_range(stored[i].n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
            checkpoint.read(static_cast<std::uint32_t>(i), offset, out);
          });
    } catch (const Error& error) {
      hashed[i].failure = error;
    }
  });
  return hashed;
}

}  // namespace ingot::formats
