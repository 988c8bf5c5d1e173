#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/container/checkpoint_index.h"
#include "formats/dialect/dialect.h"
#include "formats/records/slicing_record.h"
#include "formats/storage/stored_bytes.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

struct RankSlices;

/// How to open a directory.
struct OpenOptions {
  /// Family by name instead of by config.json (`--family`); "generic" accepts any names, and then
  /// config.json may be missing.
  std::string family;
  /// Unknown tensors that match one of these are untouched copies instead of a refusal.
  const std::vector<Pattern>* allow_unknown = nullptr;
  /// Directory with `NAME.header` files standing for weights files that were consumed (resume of
  /// --consume-source).
  std::filesystem::path consumed_headers;
  /// Collect faults here instead of throwing them (`ingot check`); what could not be understood is
  /// left out.
  ErrorList* faults = nullptr;
  std::size_t threads = 1;
};

/// A file beside the weights, copied byte for byte on conversion: everything but weights, weight
/// indices, what is derived anew (configs, the dialects' description files), ingot's own files and
/// what is no part of a checkpoint (foreign_files.h); subfolders included.
struct SideFile {
  std::string path;  ///< relative, '/'-separated
  std::uint64_t n_bytes = 0;
};

/// A model whose stored tensors somebody else has found: rank slices joined, or a conversion that
/// is planned and not written yet.
struct AssembledModel {
  std::filesystem::path directory;  ///< where side files and manifest are
  /// Bare names of what stands beside the weights; nothing: what `directory` holds.
  std::optional<std::vector<std::string>> file_names;
  ModelConfig config;                ///< of slices that are joined: of the unsliced checkpoint
  std::string config_text;           ///< of which `config` was made
  JsonValue description;             ///< null without one
  const Dialect* dialect = nullptr;  ///< null: what the config says
  std::vector<SideFile> side_files;  ///< relative to `directory`
  /// Whole where slices are joined; `file` and `offset` are for reports only then.
  std::vector<StoredTensor> stored;
  std::vector<std::string> remarks;  ///< as Checkpoint::remarks
  std::unique_ptr<StoredBytes> bytes;
  IndexFrame index_frame;                    ///< where slices are joined, of a rank's
  std::shared_ptr<const RankSlices> slices;  ///< of a rank's directory
};

/// An opened directory: config, index, files, and its logical tensors, whatever dialect it came in.
class Checkpoint final : public TensorSource {
 public:
  /// Reads config.json, the index and every header; recognises encodings and matches the family's
  /// grammar. Reads no weights. Throws (collected, in stable order) for everything that
  /// docs/formats.md calls a malformed checkpoint: weights in another format (kUnsupported), an
  /// index that disagrees with the files, duplicate names, quantized weights that lack a part,
  /// parts without a weight or of the wrong shape or dtype, integers of 4 bits (kUnsupported),
  /// tensors outside the family's grammar (kUnknownTensor, with the list), a directory that still
  /// holds .ingot-partial. A rank's directory is opened as what it is: tensors are compared with
  /// its slices (rank_slices.h), and the shape of a logical tensor is that of the slice.
  static Checkpoint open(const std::filesystem::path& directory, const OpenOptions& options = {});
  /// The same over stored tensors that were found elsewhere: recognises encodings and matches the
  /// family's grammar and the slices of a rank, with the same faults.
  static Checkpoint assemble(AssembledModel model, const OpenOptions& options = {});

  ~Checkpoint() override;
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  [[nodiscard]] const ModelConfig& config() const override;
  /// The text of config.json, to the byte; empty without one.
  [[nodiscard]] const std::string& config_text() const;
  [[nodiscard]] const Family& family() const override;
  [[nodiscard]] std::span<const LogicalTensor> tensors() const override;
  [[nodiscard]] std::span<const StoredTensor> stored() const override;
  [[nodiscard]] std::span<const SourceFile> files() const override;
  void read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] const std::filesystem::path& directory() const;
  /// The dialect that the source is written in.
  [[nodiscard]] const Dialect& dialect() const;
  /// The dialect's description file, an object; null when there is none.
  [[nodiscard]] const Json& description() const;
  [[nodiscard]] const std::vector<SideFile>& side_files() const;
  /// Whether a file of this bare name stands in the directory, readable or not.
  [[nodiscard]] bool has_file(std::string_view name) const;
  /// What stands in the directory and was left out, for people: weights that the index does not
  /// name, weights in other formats, pictures.
  [[nodiscard]] const std::vector<std::string>& remarks() const;
  /// Whether a tensor that is not here, or a part of it, may be in a weights file that could not be
  /// read; only `check` opens such a checkpoint. `name` is a weight's, with or without `.weight`.
  [[nodiscard]] bool may_have_lost(std::string_view name) const;
  /// True when the directory has an index, whatever its name.
  [[nodiscard]] bool has_index() const;
  /// What the index says beside its map; the default without one.
  [[nodiscard]] const IndexFrame& index_frame() const;
  /// Layers promised by num_nextn_predict_layers of which no tensor is here.
  [[nodiscard]] bool lacks_promised_mtp() const;
  /// The raw header bytes [0, 8+N) of a file, for fingerprints and for --consume-source.
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const;
  /// False when the file is gone and a saved header stands for it.
  [[nodiscard]] bool has_data(std::uint32_t file) const;
  /// Reads raw bytes of a weights file at an absolute offset, for fingerprints. Needs has_data().
  void read_file(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) const;
  /// How this directory was cut out of a model, when its manifest says that it is a rank's; null
  /// otherwise, and for joined slices.
  [[nodiscard]] const SlicingRecord* slicing() const;
  /// Where the stored tensors are read from.
  [[nodiscard]] const StoredBytes& bytes() const;
  /// StoredBytes::is_whole and home_file of where the tensors are.
  [[nodiscard]] bool is_whole() const;
  [[nodiscard]] std::string home_file(std::uint32_t stored) const;
  /// Closes a weights file, so that deleting it frees its blocks. It is opened again if it is read
  /// again.
  void close_file(std::uint32_t file) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ingot::formats
