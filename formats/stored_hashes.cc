#include "formats/stored_hashes.h"

#include <algorithm>

#include <sys/stat.h>

#include "formats/base/fd.h"
#include "formats/base/parallel.h"

namespace ingot::formats {
namespace {

HashedTensor hash_one(const StoredWeights& weights, std::uint32_t index) {
  const StoredTensor& tensor = weights.stored[index];
  HashedTensor hashed;
  try {
    if (!weights.bytes.has_data(tensor.file)) return hashed;
    hashed.hash = hash_range(tensor.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
      weights.bytes.read(index, tensor, offset, out);
    });
  } catch (const Error& error) {
    hashed.failure = error;
  }
  return hashed;
}

}  // namespace

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

Hash128 hash_file(const std::filesystem::path& path) {
  const Fd fd = Fd::open_for_reading(path);
  return hash_range(fd.size(), [&](std::uint64_t offset, std::span<std::byte> out) {
    fd.read_exact(out, offset);
  });
}

std::vector<HashedTensor> hash_stored(const StoredWeights& weights, std::size_t threads) {
  std::vector<HashedTensor> hashed(weights.stored.size());
  parallel_for(hashed.size(), threads, [&](std::size_t i) {
    hashed[i] = hash_one(weights, static_cast<std::uint32_t>(i));
  });
  return hashed;
}

std::optional<LinkedHashes::FileId> LinkedHashes::shared_file(const std::filesystem::path& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0 || facts.st_nlink < 2) return std::nullopt;
  return FileId{facts.st_dev, facts.st_ino};
}

std::vector<HashedTensor> LinkedHashes::hash_stored(const std::filesystem::path& directory,
                                                    const StoredWeights& weights,
                                                    std::size_t threads) {
  std::vector<std::map<Range, HashedTensor>*> known_of(weights.bytes.files().size(), nullptr);
  for (std::size_t file = 0; file < known_of.size(); ++file) {
    if (const auto id = shared_file(directory / weights.bytes.files()[file].name))
      known_of[file] = &known_[*id];
  }
  std::vector<HashedTensor> hashed(weights.stored.size());
  std::vector<std::uint32_t> unknown;
  for (std::uint32_t i = 0; i < weights.stored.size(); ++i) {
    const StoredTensor& tensor = weights.stored[i];
    const auto* known = known_of[tensor.file];
    if (known != nullptr) {
      if (const auto found = known->find({tensor.offset, tensor.n_bytes}); found != known->end()) {
        hashed[i] = found->second;
        continue;
      }
    }
    unknown.push_back(i);
  }
  parallel_for(unknown.size(), threads,
               [&](std::size_t i) { hashed[unknown[i]] = hash_one(weights, unknown[i]); });
  for (const std::uint32_t i : unknown) {
    const StoredTensor& tensor = weights.stored[i];
    if (auto* known = known_of[tensor.file])
      known->emplace(Range{tensor.offset, tensor.n_bytes}, hashed[i]);
  }
  return hashed;
}

}  // namespace ingot::formats
