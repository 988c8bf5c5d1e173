#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/base/pattern.h"
#include "formats/container/checkpoint_index.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/records/slicing_record.h"
#include "formats/storage/stored_bytes.h"
#include "formats/storage/stored_names.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

struct TensorRecord;

/// How to open a directory.
struct OpenOptions {
  /// Family by name instead of by config.json (`--family`), or `file:PATH` (`--family-file`);
  /// "generic" accepts any names, and then config.json may be missing. Where it is empty, a
  /// kFamilyFileName in the directory comes before config.json's model_type.
  std::string family;
  /// A model_type of no known family is read as "generic", and unknown tensors are taken, with a
  /// remark each instead of a refusal: for a command that only shows what is here.
  bool unknown_as_generic = false;
  /// Unknown tensors that match one of these are taken, whatever they may be (promised_tensors.h).
  const std::vector<Pattern>* allow_unknown = nullptr;
  /// The index chooses among several copies of a tensor that matches one of these; other copies
  /// are refused.
  const std::vector<Pattern>* allow_duplicate = nullptr;
  /// One of several copies with equal bytes is taken, instead of a refusal.
  bool merges_copies = false;
  /// Directory with `NAME.header` files standing for weights files that were consumed (resume of
  /// --consume-source).
  std::filesystem::path consumed_headers;
  /// Collect faults here instead of throwing them (`ingot check`); parts that could not be
  /// understood are left out.
  ErrorList* faults = nullptr;
  std::size_t threads = 1;
  /// Every weights file that is here belongs to the checkpoint, whatever an index says.
  bool ignores_index = false;
};

class Checkpoint;

/// One of the checkpoints of which another is composed (formats/composed.h).
struct Giver {
  std::string name;  ///< name in the recipe
  std::shared_ptr<const Checkpoint> model;
};

/// A file next to the weights, copied byte for byte on conversion: everything but weights, weight
/// indices, derived files (configs, the dialects' description files), ingot's own files and files
/// that are no part of a checkpoint (foreign_files.h); subfolders included.
struct SideFile {
  std::string path;  ///< relative, '/'-separated
  std::uint64_t n_bytes = 0;
};

/// Slicing of a rank's stored tensors: `slicing` of the manifest, `slice` of the records.
struct RankSlices {
  SlicingRecord slicing;  ///< record of the slicing, with `rank`
  std::unordered_map<std::string, SliceRecord> by_name;
  bool has_records = false;  ///< false when they could not be read, which has been reported

  /// Null for a tensor that is whole.
  [[nodiscard]] const SliceRecord* find(const std::string& stored) const;
};

/// The slices that records of a rank name. Throws kDuplicate for a name that several records have.
RankSlices rank_slices(SlicingRecord slicing, std::span<const TensorRecord> records);

/// A checkpoint while it is opened: the passes of checkpoint.cc fill it, and Checkpoint keeps it. A
/// caller that has found a model's stored tensors itself (joined rank slices, a conversion that is
/// not written yet) fills the members up to `is_one_file`, for Checkpoint::assemble().
struct Draft {
  std::filesystem::path directory;  ///< directory of weights, side files and manifest
  /// Bare names of the files next to the weights, sorted when it is opened.
  std::vector<std::string> file_names;
  ModelConfig config;                ///< config; of joined slices: that of the unsliced checkpoint
  std::string config_text;           ///< text that `config` was read from
  JsonValue description;             ///< the dialect's description file; null without one
  const Dialect* dialect = nullptr;  ///< null: as the config says
  std::vector<SideFile> side_files;  ///< relative to `directory`
  std::vector<std::string> remarks;  ///< remarks for people
  bool has_index = false;
  CheckpointIndex index;  ///< index; without its map when opened; of joined slices: one rank's
  /// Whole tensors where slices are joined; then `file` and `offset` are only for reports.
  std::vector<StoredTensor> stored;
  std::unique_ptr<StoredBytes> bytes;
  std::shared_ptr<const RankSlices> slices;  ///< slicing, for a rank's directory
  /// False where slices were joined by their names: one of an unknown name may be cut.
  bool cuts_are_known = true;
  bool is_one_file = false;  ///< true: a file of a checkpoint, whose other files are not looked for
  std::vector<Giver> givers;  ///< Checkpoint::givers()

  const Family* family = find_family("generic");
  std::vector<LogicalTensor> tensors;
  std::vector<std::string> weights;  ///< bare names of the weights files, sorted
  std::vector<std::string> strays;   ///< weights files that no list of files has, sorted
  std::vector<LeftOut> left_out;     ///< files that are no part of the checkpoint
  /// Names that the index gives to files that were not read, sorted.
  std::vector<std::string> lost;
  std::array<std::uint64_t, 2> block = {128, 128};  ///< block of scales, as the config says
  std::string table_called_head;                    ///< Checkpoint::table_called_head()
  /// Aliases (NameAlias::stored) of stored tensors that rename_aliases() renamed, by their names.
  std::unordered_map<std::string, std::string> aliases;
  bool has_identity_experts = false;  ///< Checkpoint::has_identity_experts()
  /// Names of weights of which rows or scales are in another order in the files (make_parts()).
  std::set<std::string, std::less<>> reordered;
  bool takes_any_names = false;      ///< true: generic, whose config.json may be missing
  bool is_understood = true;         ///< Checkpoint::is_understood()
  bool is_complete = true;           ///< true: every file could be read
  bool lacks_promised_mtp = false;   ///< Checkpoint::lacks_promised_mtp()
  std::optional<Error> unread_form;  ///< way of quantizing that no reader here knows

  OpenOptions options;
  ErrorList faults;  ///< faults since the last settle()

  /// Throws the faults, or adds them to those of the options.
  void settle();
  /// Runs code that may throw; false, with a fault, when it did.
  template <typename Body>
  bool attempt(const Body& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      faults.add(error);
      return false;
    }
  }
  /// Adds a fault of a stored tensor.
  template <typename... Args>
  void fault(const StoredTensor& tensor, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    faults.add(fault_of(bytes->files(), tensor, code, format, std::forward<Args>(args)...));
  }
  /// The stored tensors by name.
  const StoredNames& names();
  /// Says that stored tensors, or their names, are others now.
  void forget_names() { names_.reset(); }

 private:
  std::optional<StoredNames> names_;
};

/// An opened directory: config, index, files, and its logical tensors, whatever dialect it came in.
class Checkpoint final : public TensorSource {
 public:
  /// Reads config.json, the index and every header; recognises encodings and matches the family's
  /// grammar. Reads no weights. Throws (collected, in stable order) for everything that
  /// docs/formats.md calls a malformed checkpoint: weights in another format (kUnsupported), an
  /// index that disagrees with the files, duplicate names, quantized weights that lack a part,
  /// parts without a weight or of the wrong shape or dtype, integers of 4 bits (kUnsupported),
  /// tensors that may be misspelt weights (kUnknownTensor, with the list), a directory that still
  /// holds .ingot-partial. A rank's directory is opened as such: tensors are compared with its
  /// slices (rank_slices.cc), and the shape of a logical tensor is that of the slice.
  static Checkpoint open(const std::filesystem::path& directory, const OpenOptions& options = {});
  /// Makes a checkpoint of stored tensors that were found elsewhere: recognises encodings and
  /// matches the family's grammar and the slices of a rank, with the faults of open().
  static Checkpoint assemble(Draft draft, const OpenOptions& options = {});
  /// Makes a view of a checkpoint, which was judged: the logical tensors that `draft` has, of other
  /// stored ones. Its other members are those of draft_of_view().
  static Checkpoint view(Draft draft);
  /// All that a view has in common with this checkpoint: no tensors and no bytes.
  [[nodiscard]] Draft draft_of_view() const;

  [[nodiscard]] const ModelConfig& config() const override { return state_->config; }
  /// The text of config.json, to the byte; empty without one.
  [[nodiscard]] const std::string& config_text() const { return state_->config_text; }
  [[nodiscard]] const Family& family() const override { return *state_->family; }
  [[nodiscard]] std::span<const LogicalTensor> tensors() const override { return state_->tensors; }
  [[nodiscard]] std::span<const StoredTensor> stored() const override { return state_->stored; }
  [[nodiscard]] std::span<const SourceFile> files() const override { return bytes().files(); }
  void read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const override;

  [[nodiscard]] const std::filesystem::path& directory() const { return state_->directory; }
  /// The dialect that the source is written in.
  [[nodiscard]] const Dialect& dialect() const { return *state_->dialect; }
  /// The dialect's description file, an object; null when there is none.
  [[nodiscard]] const Json& description() const { return state_->description; }
  [[nodiscard]] const std::vector<SideFile>& side_files() const { return state_->side_files; }
  /// True if the directory has a file of this bare name, readable or not.
  [[nodiscard]] bool has_file(std::string_view name) const;
  /// Files of the directory that were left out, for people: weights that the index does not name,
  /// weights in other formats, pictures.
  [[nodiscard]] const std::vector<std::string>& remarks() const { return state_->remarks; }
  /// True if a tensor that is not here, or a part of it, may be in a weights file that could not be
  /// read; only `check` opens such a checkpoint. `name` is a weight's, with or without `.weight`.
  [[nodiscard]] bool may_have_lost(std::string_view name) const;
  /// False where config.json or the way of quantizing that it names could not be read. Then family,
  /// dialect and logical tensors are not known, and the only facts are those of the headers; only
  /// `check` opens such a checkpoint.
  [[nodiscard]] bool is_understood() const { return state_->is_understood; }
  /// The name in the files of the table that is seen as the embedding (name_tied_table()); empty
  /// where that has its own name.
  [[nodiscard]] const std::string& table_called_head() const { return state_->table_called_head; }
  /// The alias of the family (NameAlias::stored) under which the files have a stored tensor; empty
  /// for one that they call as releases do.
  [[nodiscard]] std::string_view alias_of(const std::string& stored) const;
  /// True if the files have gates and ups of experts without tensors, which are left out
  /// (leave_out_identity_experts()).
  [[nodiscard]] bool has_identity_experts() const { return state_->has_identity_experts; }
  /// True when the directory has an index, whatever its name.
  [[nodiscard]] bool has_index() const { return state_->has_index; }
  /// Entries of the index other than its map; the default without an index.
  [[nodiscard]] const IndexFrame& index_frame() const { return state_->index.frame; }
  /// Layers promised by num_nextn_predict_layers of which no tensor is here.
  [[nodiscard]] bool lacks_promised_mtp() const { return state_->lacks_promised_mtp; }
  /// The slicing of a rank's directory, from its manifest; null for others, and for joined slices.
  [[nodiscard]] const SlicingRecord* slicing() const;

  /// The checkpoints of which this one is composed, the base first; empty for any other.
  [[nodiscard]] std::span<const Giver> givers() const { return state_->givers; }
  /// The checkpoint whose config, dialect and description tell of a tensor: the one that gave it,
  /// or this one, where nothing is composed.
  [[nodiscard]] const Checkpoint& giver_of(const LogicalTensor& tensor) const {
    return state_->givers.empty() ? *this : *state_->givers.at(tensor.giver).model;
  }

  /// The bytes of the stored tensors.
  [[nodiscard]] const StoredBytes& bytes() const { return *state_->bytes; }
  /// The raw bytes of a file's header, for fingerprints and for --consume-source.
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const {
    return bytes().header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const { return bytes().has_data(file); }
  /// Reads raw bytes of a file, for fingerprints. Needs has_data().
  void read_file(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) const {
    bytes().read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const { bytes().close_file(file); }
  [[nodiscard]] bool is_whole() const { return bytes().is_whole(); }
  [[nodiscard]] std::string home_file(std::uint32_t stored) const {
    return bytes().home_file(stored);
  }

 private:
  explicit Checkpoint(Draft draft) : state_(std::make_unique<Draft>(std::move(draft))) {}
  friend Checkpoint open_weights_file(const std::filesystem::path& path,
                                      const std::filesystem::path& config, OpenOptions options);
  static Checkpoint judged(Draft draft);

  // The draft is on the heap, so that references to its members outlive a move.
  std::unique_ptr<Draft> state_;
};

/// True if `path` names one weights file (`*.safetensors`), not a directory.
bool is_weights_file(const std::filesystem::path& path);

/// One weights file as a checkpoint; no other file of its folder is read. Its family is the one in
/// the options, else that of `config` (a config.json), else generic, which accepts any names. Parts
/// of weights whose other parts are elsewhere, as at the borders of shards, are left out with a
/// remark. Throws, or collects, as Checkpoint::open does.
Checkpoint open_weights_file(const std::filesystem::path& path, const std::filesystem::path& config,
                             OpenOptions options);

}  // namespace ingot::formats
