#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/json/json_fwd.h"
#include "formats/records/slicing_record.h"

namespace ingot::formats {

inline constexpr std::string_view kManifestName = "ingot.json";
inline constexpr std::string_view kRecordsName = "ingot.tensors.jsonl.zst";
/// The report of the verification that let a conversion be published; not listed in the manifest.
inline constexpr std::string_view kVerifyName = "ingot.verify.json";
inline constexpr std::string_view kPartialName = ".ingot-partial";

/// `as` of an entry of Manifest::sources whose tensors lie over the base's.
inline constexpr std::string_view kAsOverlay = "overlay";
/// `as` of the one whose tensors are values that were encoded as the base's are.
inline constexpr std::string_view kAsEdits = "edits";

/// A file that a conversion wrote.
struct ManifestFile {
  std::string name;  ///< relative, '/'-separated
  std::uint64_t n_bytes = 0;
  Hash128 hash;  ///< weights: over header bytes and tensor hashes (weights_file_hash); others:
                 ///< tensor hash of the bytes
  std::string sha256;  ///< plain SHA-256, when asked for
};

/// `ingot.json`: the output, its source, and how it was made. Holds no time, host or path: two runs
/// give the same bytes.
struct Manifest {
  std::string tool_version;
  std::string family, dialect, layout;
  JsonValue recipe;  ///< resolved rules, allowances, mtp policy
  JsonValue source;  ///< fingerprint of the source files
  /// The quantization_config that the source had, or that its own manifest remembers; null without
  /// one. Says on which grid a BF16 cast was before.
  JsonValue source_quantization;
  std::vector<ManifestFile> files;       ///< weights
  std::vector<ManifestFile> side_files;  ///< copied and derived files, the manifest itself excepted
  std::uint64_t n_tensors = 0;
  Hash128 records_hash;  ///< hash of the uncompressed text of the per-tensor records
  /// Sliced layouts: how the model was cut.
  std::optional<SlicingRecord> slicing = {};
  /// The verification that was asked for and then left out (--no-verify), in words; empty: none.
  std::string unverified = {};
  /// Layouts `deepseek-mp` and `vllm-sharded`, which have no index: the source's without its
  /// tensors, so that merged shards have an index of the same form; empty where that is the
  /// default.
  std::string index = {};
  /// Layout `vllm-sharded`: the engine that the files are for, and under `constants` the names of
  /// tensors of ones that it creates itself. Null for others.
  JsonValue engine = {};
  /// `ingot compose`: the checkpoints that gave the tensors, a list of objects with `name`, and
  /// with what their cards say: `models`, `commit`, `license`. The base is the first. Null for
  /// others.
  JsonValue sources = {};

  /// True if the layers for multi-token prediction were left out on request (`--mtp drop`).
  [[nodiscard]] bool drops_mtp() const;
  /// The patterns of `--allow KIND=PATTERN` that it was made with.
  [[nodiscard]] std::vector<std::string> allowed(std::string_view kind) const;
  /// Names of stored tensors that no tensor of the model fills (`engine`, `constants`).
  [[nodiscard]] std::set<std::string, std::less<>> constants() const;
};

std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, std::string_view where);
/// Returns nullopt when the directory has no manifest.
std::optional<Manifest> read_manifest(const std::filesystem::path& directory);

/// The place of a stored tensor of the hub, if it is a stretch of a stored tensor of a file.
struct PieceRecord {
  std::string of;            ///< the tensor of the file
  std::uint64_t offset = 0;  ///< offset in bytes, within that tensor
  bool is_turned = false;    ///< true: that tensor has columns of its pieces as rows
};

/// One stored tensor on either side of a conversion, with the hash of its bytes.
struct TensorHash {
  std::string name, file;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  Hash128 hash;
  std::optional<SliceRecord> slice = {};  ///< slice, for a rank's tensor that is not whole
  std::string home_file = {};             ///< home file; empty: that of the record
  std::optional<PieceRecord> piece = {};  ///< place, for a stretch of a stored tensor of its file
};

/// The error of encoding a tensor, against the values that were encoded.
struct RecordedError {
  double relative_error = 0;  ///< Frobenius
  double sqnr_db = 0;         ///< infinite without error (null in the record)
  double cosine = 0;
  double max_error = 0;
  std::uint64_t elements = 0, saturated = 0, zeroed = 0;
  std::uint64_t blocks = 0, exact_blocks = 0;  ///< groups that share a scale
};

/// How much of the change of a tensor's values its codes show (quantize::ChangeSums).
struct RecordedChange {
  double survival = 0;  ///< share of the wanted change, by projection
  double cosine = 0;
  double relative_change = 0;  ///< the wanted change against the values before it, Frobenius
};

/// A global scale as its maker wrote it, kept where the output holds its reciprocal.
struct RecordedGlobal {
  float value = 1;
  bool divides = false;
};

/// One line of the per-tensor records.
struct TensorRecord {
  std::string name;  ///< logical tensor
  std::string role;
  std::optional<std::uint32_t> layer, expert;
  std::string action;    ///< "copy", "rewrap", "cast", "quantize" or "drop"
  std::string from, to;  ///< schemes
  std::vector<TensorHash> source;
  std::vector<TensorHash> output;
  std::optional<RecordedError> error;
  std::optional<RecordedChange> change = {};  ///< change by an adapter or edits
  std::optional<RecordedGlobal> original_global;
  bool carries_errors = false;  ///< codes were chosen column by column (--gptq)
  /// Weights file in which layout `hf` would have the tensor; only for a rank's tensors.
  std::string home_file = {};
  std::string giver = {};  ///< `ingot compose`: the one of Manifest::sources that gave it
};

std::string tensor_record_line(const TensorRecord& record);
TensorRecord parse_tensor_record(std::string_view line, std::string_view where);

/// Writes the lines as one zstd stream and returns the hash of the uncompressed text.
Hash128 write_tensor_records(const std::filesystem::path& path,
                             std::span<const TensorRecord> records,
                             Durable durable = Durable::kNow);
/// Reads records back; throws kMismatch when the content hash differs from `expected`.
std::vector<TensorRecord> read_tensor_records(const std::filesystem::path& path,
                                              const Hash128& expected);

/// The hash of a weights file: tensor hash over its header bytes followed by its tensors' hashes
/// (16 bytes each, big-endian) in file order.
Hash128 weights_file_hash(std::span<const std::byte> header, std::span<const Hash128> tensors);

}  // namespace ingot::formats
