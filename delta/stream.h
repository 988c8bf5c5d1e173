#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "delta/checksum.h"
#include "delta/patch.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/container/tensor.h"

// A stream of versions of one checkpoint, as engines of reinforcement learning pull them from a
// shared folder: STREAM/weight_v000001, weight_v000002, ... A version is a full checkpoint, or a
// delta, which has an index with `delta_encoding`. docs/versions.md has every byte.

namespace ingot::delta {

/// The name of the protocol, for reports.
inline constexpr std::string_view kProtocol = "disk-delta";
/// The folder of a version with files that are put into the checkpoint as they are.
inline constexpr std::string_view kExtraName = "extra";
inline constexpr std::string_view kDeltaRecordName = "ingot.delta.jsonl.zst";
/// The key in an index's metadata that holds the hash of our record.
inline constexpr std::string_view kRecordKey = "ingot_record";

/// True for a file that ingot wrote about an output: its manifest, its records, its verification.
bool is_own_record(const std::string& name);

/// `weight_v000012`.
std::string version_name(std::uint64_t version);
/// `000012`, as indices and states hold it.
std::string version_text(std::uint64_t version);
/// The versions of a stream, ascending. None where the folder is absent.
std::vector<std::uint64_t> versions_in(const std::filesystem::path& stream);

/// The version that a checkpoint's directory says to hold, by `.weight_sync/state.json`; nullopt
/// without one: version 0. Throws kCorrupt for a file of another form.
std::optional<std::uint64_t> state_of(const std::filesystem::path& directory);
/// The place and the text of that file.
inline constexpr std::string_view kSyncFolder = ".weight_sync";
inline constexpr std::string_view kStateName = "state.json";
std::string state_text(std::uint64_t version);
/// The path of the state in a directory `inside` another; empty: in that itself.
std::filesystem::path state_name(const std::filesystem::path& inside);

/// A tensor in our record of a delta.
struct RecordedTensor {
  std::string name, dtype;
  formats::Shape shape;
  Hash128 base;                 ///< tensor hash in the version before
  std::optional<Hash128> next;  ///< tensor hash in this version, if it is another
  /// The changed tensor whose payload is this one's too, as its bytes are before and after; empty:
  /// it has its own.
  std::string like = {};
};

/// A file below extra/.
struct ExtraFile {
  std::string name;  ///< path in the checkpoint
  std::uint64_t n_bytes = 0;
  Hash128 hash;            ///< tensor hash of its bytes
  std::string place = {};  ///< path below extra/
};

/// Our record of a delta, ingot.delta.jsonl.zst: facts that the form itself has no place for.
struct DeltaRecord {
  std::uint64_t version = 0, base = 0;
  std::vector<RecordedTensor> tensors;  ///< tensors of the checkpoint, all, by name
  std::vector<ExtraFile> extra;         ///< files, by name
  std::vector<std::string> removed;     ///< files that the new version does not have, sorted

  [[nodiscard]] const RecordedTensor* find(std::string_view name) const;
};
/// Writes the record and returns the hash of its text.
Hash128 write_record(const std::filesystem::path& path, const DeltaRecord& record);
/// Throws kMismatch where the text has another hash, kCorrupt for what no record of ours has.
DeltaRecord read_record(const std::filesystem::path& path, const Hash128& expected);

/// A changed tensor of a delta.
struct DeltaTensor {
  std::string name;        ///< name; tensors of one payload have the same file and offset
  std::uint32_t file = 0;  ///< number among the delta's files
  std::uint64_t offset = 0, n_bytes = 0;
  std::string checksum;
};

/// One version of a stream, opened: its headers and records, and no payload. Move-only.
struct Version {
  std::filesystem::path directory;
  std::uint64_t number = 0, base = 0;  ///< `base`: only of a delta
  bool is_full = false;
  DeltaEncoding encoding = DeltaEncoding::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3;
  std::vector<Fd> files;
  std::vector<DeltaTensor> tensors;   ///< tensors, by name
  std::optional<DeltaRecord> record;  ///< nullopt: another program made it
  std::vector<ExtraFile> extra;       ///< files below extra/; without a record their hash is unset

  [[nodiscard]] const DeltaTensor* find(std::string_view name) const;
  [[nodiscard]] ReadBytes payload(const DeltaTensor& tensor) const;
  [[nodiscard]] std::uint64_t n_payload() const;
  [[nodiscard]] std::filesystem::path extra_path(const ExtraFile& file) const {
    return directory / kExtraName / file.place;
  }
  /// Leaves what is of one of the ranks that the version is of, for a base that is the directory
  /// `folder` of this rank; does nothing where it is of no such directory.
  void narrow_to(const std::string& folder);
};

/// Opens the version in a directory of that name. Refuses (kCorrupt, kUnsupported, kDuplicate,
/// kMismatch) an index that lies about files or tensors, a tensor in two files, a tensor without a
/// checksum, names that lead out of a folder, and another number than the directory's.
Version open_version(const std::filesystem::path& directory);

}  // namespace ingot::delta
