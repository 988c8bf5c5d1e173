#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "delta/checksum.h"
#include "delta/patch.h"

namespace ingot::delta {

struct MakeOptions {
  DeltaEncoding encoding = DeltaEncoding::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3;
  std::size_t threads = 1;
  /// Tensors with the same hash in the records of both sides are not read.
  bool by_records = false;
  /// With `by_records`: the stream may end with this very version, of a run that was killed behind
  /// it. Then nothing is written.
  bool is_again = false;
  /// Bytes of both sides that were read so far, and in all. From any thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

struct MadeDelta {
  std::filesystem::path directory;  ///< directory of the version
  std::uint64_t version = 0, base = 0;
  DeltaEncoding encoding = DeltaEncoding::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3;
  std::uint64_t n_tensors = 0, n_bytes = 0;          ///< tensors of the checkpoint
  std::uint64_t n_changed = 0, n_changed_bytes = 0;  ///< changed tensors, and bytes in them
  std::uint64_t n_files = 0, n_payload = 0, n_extra = 0;
  bool was_there = false;  ///< an earlier run had made it
  std::vector<std::string> remarks;
};

/// Writes the difference of two checkpoints as the next version of a stream: its last + 1, or 1.
/// The version appears whole, by one rename; a killed run leaves `.ingot-delta` in the stream, and
/// the next run removes it. Both sides may be plain or quantized, and sharded differently: the
/// delta changes tensors by their names; of checkpoints that are cut for ranks, all ranks at once.
/// Its bytes depend on both sides, the number, encoding and checksum, never on threads. Memory: a
/// few MiB for each thread; payloads wait on disk. Throws kUnsupported where tensors were added,
/// removed or changed dtype or shape (a delta has no form for that), kMismatch where `old` is not
/// the stream's last version, as far as that is known, kInvalidArgument where the stream lies in a
/// model's folder.
MadeDelta make_delta(const std::filesystem::path& old, const std::filesystem::path& now,
                     const std::filesystem::path& stream, const MakeOptions& options);

}  // namespace ingot::delta
