#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::check {

/// The tensor hash of `n_bytes` that `read(offset, out)` gives piece by piece. Asks the StopScope
/// before each, as the functions below do.
Hash128 hash_range(std::uint64_t n_bytes,
                   const std::function<void(std::uint64_t, std::span<std::byte>)>& read);

/// The hash of a stored tensor, or why it could not be read; neither when its file was consumed.
struct HashedTensor {
  std::optional<Hash128> hash;
  std::optional<Error> failure;
};

/// Stored tensors and where their bytes are.
struct StoredWeights {
  std::span<const formats::StoredTensor> stored;
  const formats::StoredBytes& bytes;
};

/// The share of a run in work that takes long and that several runs share: consecutive items, by
/// bytes. Every run takes the same items in the same order.
struct WorkShare {
  std::uint32_t index = 0;  ///< number of the run, from 0
  std::uint32_t n = 1;      ///< runs in all

  /// True if it has the item that begins `before` bytes after the first of items of `total` bytes.
  [[nodiscard]] bool has(std::uint64_t before, std::uint64_t total) const;
};

/// Hashes of the stored tensors of a checkpoint, all its directories one after another. Hashes that
/// are there are taken over, and those of the share are added.
struct HashLedger {
  WorkShare share;
  std::vector<std::optional<Hash128>> hashes;
};

/// The tensor hash of a file's bytes, in chunks on all threads.
Hash128 hash_file(const std::filesystem::path& path, std::size_t threads = 1);

/// Reads every tensor once, in chunks on all threads. One entry for each of `weights.stored`, in
/// its order. Throws nothing but kInterrupted.
std::vector<HashedTensor> hash_stored(const StoredWeights& weights, std::size_t threads);

/// Hashes of several directories: files that they share by hard links are read once. From one
/// thread.
class LinkedHashes {
 public:
  /// `ledger` may be null, and must outlive it.
  explicit LinkedHashes(HashLedger* ledger = nullptr) : ledger_(ledger) {}
  /// Tensors that are no run's of the ledger's share have neither hash nor failure. `directory` is
  /// where the files of `weights` are.
  std::vector<HashedTensor> hash_stored(const std::filesystem::path& directory,
                                        const StoredWeights& weights, std::size_t threads);

 private:
  using FileId = std::pair<std::uint64_t, std::uint64_t>;  // device, inode
  using Range = std::pair<std::uint64_t, std::uint64_t>;   // offset, bytes
  static std::optional<FileId> shared_file(const std::filesystem::path& path);

  HashLedger* ledger_;
  std::size_t n_seen_ = 0;  ///< tensors of the ledger
  std::map<FileId, std::map<Range, HashedTensor>> known_;
};

}  // namespace ingot::check
