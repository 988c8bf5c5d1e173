#include "check/stored_hashes.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include <sys/stat.h>

#include "formats/base/chunks.h"
#include "formats/base/fd.h"

namespace ingot::check {

using formats::StoredTensor;

namespace {

// Chunks of some of the tensors, and what became of each.
class ChunkHashes {
 public:
  ChunkHashes(const StoredWeights& weights, std::span<const std::uint32_t> tensors,
              const HashingOptions& options)
      : weights_(weights), tensors_(tensors), options_(options), hashed_(tensors.size()) {
    for (const std::uint32_t index : tensors) {
      const StoredTensor& tensor = weights.stored[index];
      sizes_.push_back(weights.bytes.has_data(tensor.file) ? tensor.n_bytes : 0);
      chunks_.emplace_back(count_chunks(sizes_.back()));
    }
    failed_at_.assign(tensors.size(), std::numeric_limits<std::uint64_t>::max());
  }

  std::vector<HashedTensor> run() {
    for_each_chunk(sizes_, options_.threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
      try {
        hash(chunk, memory);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInterrupted) throw;
        keep(chunk, error);
      }
    });
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const StoredTensor& tensor = weights_.stored[tensors_[i]];
      if (hashed_[i].failure || !weights_.bytes.has_data(tensor.file)) continue;
      hashed_[i].hash = hash_of_chunks(chunks_[i], tensor.n_bytes);
    }
    return std::move(hashed_);
  }

 private:
  void hash(const Chunk& chunk, std::span<std::byte> memory) {
    const std::uint32_t index = tensors_[chunk.run];
    ChunkHasher hasher;
    for_each_piece(
        chunk, memory,
        [&](std::uint64_t offset, std::span<std::byte> out) {
          if (options_.stop_requested && options_.stop_requested())
            throw Error(ErrorCode::kInterrupted, "stopped while weights were hashed");
          weights_.bytes.read(index, weights_.stored[index], offset, out);
        },
        [&](std::span<const std::byte> bytes, std::uint64_t) { hasher.update(bytes); });
    chunks_[chunk.run][chunk.index()] = hasher.finish();
  }

  // Keeps the failure nearest to the beginning of a tensor, whichever came first.
  void keep(const Chunk& chunk, const Error& error) {
    const std::lock_guard lock(mutex_);
    if (chunk.offset >= failed_at_[chunk.run]) return;
    failed_at_[chunk.run] = chunk.offset;
    hashed_[chunk.run].failure = error;
  }

  const StoredWeights& weights_;
  const std::span<const std::uint32_t> tensors_;
  const HashingOptions& options_;
  std::vector<std::uint64_t> sizes_;
  std::vector<std::vector<Hash128>> chunks_;
  std::mutex mutex_;                      // guards the two below while threads run
  std::vector<std::uint64_t> failed_at_;  // offset
  std::vector<HashedTensor> hashed_;
};

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

Hash128 hash_file(const std::filesystem::path& path, const HashingOptions& options) {
  const Fd fd = Fd::open_for_reading(path);
  const std::uint64_t n_bytes = fd.size();
  std::vector<Hash128> chunks(count_chunks(n_bytes));
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    if (options.stop_requested && options.stop_requested())
      throw Error(ErrorCode::kInterrupted, "stopped while files were hashed");
    fd.read_exact(out, offset);
  };
  for_each_chunk(
      {&n_bytes, 1}, options.threads, [&](const Chunk& chunk, std::span<std::byte> memory) {
        ChunkHasher hasher;
        for_each_piece(chunk, memory, read, [&](std::span<const std::byte> bytes, std::uint64_t) {
          hasher.update(bytes);
        });
        chunks[chunk.index()] = hasher.finish();
      });
  return hash_of_chunks(chunks, n_bytes);
}

std::vector<HashedTensor> hash_stored(const StoredWeights& weights, const HashingOptions& options) {
  std::vector<std::uint32_t> all(weights.stored.size());
  std::iota(all.begin(), all.end(), 0U);
  return ChunkHashes(weights, all, options).run();
}

std::optional<LinkedHashes::FileId> LinkedHashes::shared_file(const std::filesystem::path& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0 || facts.st_nlink < 2) return std::nullopt;
  return FileId{facts.st_dev, facts.st_ino};
}

std::vector<HashedTensor> LinkedHashes::hash_stored(const std::filesystem::path& directory,
                                                    const StoredWeights& weights,
                                                    const HashingOptions& options) {
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
  std::vector<HashedTensor> found = ChunkHashes(weights, unknown, options).run();
  for (std::size_t i = 0; i < unknown.size(); ++i) hashed[unknown[i]] = std::move(found[i]);
  for (const std::uint32_t i : unknown) {
    const StoredTensor& tensor = weights.stored[i];
    if (auto* known = known_of[tensor.file])
      known->emplace(Range{tensor.offset, tensor.n_bytes}, hashed[i]);
  }
  return hashed;
}

}  // namespace ingot::check
