#include "check/stored_hashes.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include <sys/stat.h>

#include "formats/base/chunks.h"
#include "formats/base/fd.h"
#include "formats/base/stop_scope.h"

namespace ingot::check {

using formats::StoredTensor;

namespace {

using Read = std::function<void(std::uint64_t, std::span<std::byte>)>;

Hash128 hash_chunk(const Chunk& chunk, std::span<std::byte> memory, const Read& read) {
  ChunkHasher hasher;
  for_each_piece(chunk, memory, read,
                 [&](std::span<const std::byte> bytes, std::uint64_t) { hasher.update(bytes); });
  return hasher.finish();
}

std::vector<HashedTensor> hash_some(const StoredWeights& weights,
                                    std::span<const std::uint32_t> tensors, std::size_t threads) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<Hash128>> chunks;
  for (const std::uint32_t index : tensors) {
    const StoredTensor& tensor = weights.stored[index];
    sizes.push_back(weights.bytes.has_data(tensor.file) ? tensor.n_bytes : 0);
    chunks.emplace_back(count_chunks(sizes.back()));
  }
  std::vector<HashedTensor> hashed(tensors.size());
  std::vector<std::uint64_t> failed_at(tensors.size(), std::numeric_limits<std::uint64_t>::max());
  std::mutex mutex;  // guards the two above while threads run
  for_each_chunk(sizes, threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
    const std::uint32_t index = tensors[chunk.run];
    try {
      chunks[chunk.run][chunk.index()] =
          hash_chunk(chunk, memory, [&](std::uint64_t offset, std::span<std::byte> out) {
            weights.bytes.read(index, weights.stored[index], offset, out);
          });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      // The failure nearest to the beginning of a tensor is kept, whichever came first.
      const std::lock_guard lock(mutex);
      if (chunk.offset >= failed_at[chunk.run]) return;
      failed_at[chunk.run] = chunk.offset;
      hashed[chunk.run].failure = error;
    }
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = weights.stored[tensors[i]];
    if (!hashed[i].failure && weights.bytes.has_data(tensor.file))
      hashed[i].hash = hash_of_chunks(chunks[i], tensor.n_bytes);
  }
  return hashed;
}

}  // namespace

bool WorkShare::has(std::uint64_t before, std::uint64_t total) const {
  // Bytes of a checkpoint times runs need more than 64 bits only far beyond what disks hold.
  const std::uint64_t each = std::max<std::uint64_t>(total / n, 1);
  return std::min<std::uint64_t>(before / each, n - 1) == index;
}

Hash128 hash_range(std::uint64_t n_bytes,
                   const std::function<void(std::uint64_t, std::span<std::byte>)>& read) {
  TensorHasher hasher;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kHashChunkBytes, n_bytes)));
  for (std::uint64_t offset = 0; offset < n_bytes; offset += buffer.size()) {
    const auto bytes = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), n_bytes - offset)));
    StopScope::check();
    read(offset, bytes);
    hasher.update(bytes);
  }
  return hasher.finish();
}

Hash128 hash_file(const std::filesystem::path& path, std::size_t threads) {
  const Fd fd = Fd::open_for_reading(path);
  const std::uint64_t n_bytes = fd.size();
  std::vector<Hash128> chunks(count_chunks(n_bytes));
  for_each_chunk({&n_bytes, 1}, threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
    chunks[chunk.index()] = hash_chunk(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) { fd.read_exact(out, offset); });
  });
  return hash_of_chunks(chunks, n_bytes);
}

std::vector<HashedTensor> hash_stored(const StoredWeights& weights, std::size_t threads) {
  std::vector<std::uint32_t> all(weights.stored.size());
  std::iota(all.begin(), all.end(), 0U);
  return hash_some(weights, all, threads);
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
  HashLedger own;
  HashLedger& ledger = ledger_ != nullptr ? *ledger_ : own;
  const std::size_t first = std::exchange(n_seen_, n_seen_ + hashed.size());
  ledger.hashes.resize(std::max(ledger.hashes.size(), n_seen_));
  std::uint64_t before = 0, total = 0;
  for (const StoredTensor& tensor : weights.stored) total += tensor.n_bytes;
  for (std::uint32_t i = 0; i < weights.stored.size(); ++i) {
    const StoredTensor& tensor = weights.stored[i];
    hashed[i].hash = ledger.hashes[first + i];
    const bool is_ours = ledger.share.has(std::exchange(before, before + tensor.n_bytes), total);
    if (hashed[i].hash || !is_ours) continue;
    if (const auto* known = known_of[tensor.file]) {
      if (const auto found = known->find({tensor.offset, tensor.n_bytes}); found != known->end()) {
        hashed[i] = found->second;
        continue;
      }
    }
    unknown.push_back(i);
  }
  std::vector<HashedTensor> found = hash_some(weights, unknown, threads);
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    const StoredTensor& tensor = weights.stored[unknown[i]];
    hashed[unknown[i]] = std::move(found[i]);
    if (auto* known = known_of[tensor.file])
      known->emplace(Range{tensor.offset, tensor.n_bytes}, hashed[unknown[i]]);
  }
  for (std::size_t i = 0; i < hashed.size(); ++i) ledger.hashes[first + i] = hashed[i].hash;
  return hashed;
}

}  // namespace ingot::check
