#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "convert/plan/job_part.h"
#include "convert/recipe/recipe.h"
#include "convert/recipe/source_card.h"
#include "convert/recipe/statistics.h"
#include "formats/base/hash.h"
#include "formats/changes/value_change.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "formats/places/turned.h"
#include "formats/records/layout.h"
#include "shard/align/align_blocks.h"
#include "shard/align/aligned_part.h"
#include "shard/cut/part_cut.h"
#include "shard/cut/slicing.h"

namespace ingot::convert {

/// The action on a logical tensor.
enum class Action : std::uint8_t {
  kCopy,      ///< every stored part byte for byte, under its name
  kRewrap,    ///< codes kept, parts under the names and conventions of the target dialect
  kCast,      ///< decoded and written in a plain scheme
  kQuantize,  ///< decoded and encoded in a quantized scheme
  kDrop,      ///< left out of the output
};
std::string_view action_name(Action action);

/// The place of slices of a part.
struct PlannedPlace {
  static constexpr std::uint32_t kAllExperts = ~std::uint32_t{0};

  std::uint32_t file = 0;  ///< index into Plan::files; its member m holds slice first_slice + m
  std::uint32_t first_slice = 0;
  /// The EP rank whose experts are here, if they are stacked.
  std::uint32_t ep_rank = kAllExperts;
  std::uint32_t first_hash = 0;  ///< index of the hash of slice 0 here, in PartWriter::finish()
  std::uint64_t offset = 0;      ///< absolute, the same in every member
  /// Index into PlannedFile::joined, where the part is a piece of a stored tensor.
  std::uint32_t joined = kOwn;
  static constexpr std::uint32_t kOwn = ~std::uint32_t{0};
};

/// One stored tensor of the output, before it is cut.
struct PlannedPart {
  formats::Part part{};
  formats::DType dtype{};
  std::uint32_t first_place = 0, n_places = 0;  ///< range of Plan::places
  std::uint64_t n_bytes = 0;  ///< bytes of the whole part, before it is retiled or padded
};

/// One logical tensor: its action and the places of its parts. Its position in Plan::tensors is its
/// id in the journal.
struct PlannedTensor {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t tensor = 0;  ///< index into TensorSource::tensors()
  Action action{};
  formats::SchemeId to{};
  /// No rule asked for it: the source's scheme has no place in the target dialect.
  bool is_demoted = false;
  bool is_weighted = false;        ///< --importance knows its columns
  bool carries_errors = false;     ///< --gptq: --importance knows the moments of its inputs
  bool adds_zero_points = false;   ///< kQuantize only: zero points are chosen with the scales
  bool by_moments = false;         ///< its scales are searched by moments of its inputs
  bool is_changed = false;         ///< its decoded values change (Plan::changes)
  bool keeps_group_order = false;  ///< kQuantize only: the source's order of groups stays
  /// Its codes stay where those of its fused set that change fit under the global scales that they
  /// have; else the whole set is encoded again. Only the values tell.
  bool may_keep_codes = false;
  /// The global scale that block scales of a kCopy are computed again for, as the dialect stores
  /// it.
  std::optional<float> joint_global = {};
  std::uint8_t n_parts = 0;
  std::uint32_t fused_set = kNone;  ///< index into Plan::fused_sets
  std::uint32_t scales = kNone;     ///< --scales-from: index into that checkpoint's tensors()
  const formats::StorageRow* storage = nullptr;  ///< row of the parts of kRewrap and kQuantize
  std::array<std::uint64_t, 2> block = {0, 0};   ///< rows and columns that share a scale
  InputScale input;                              ///< input scale of static activations
  bool keeps_input = false;  ///< kRewrap only: stored scales of static activations are kept
  shard::TensorCut cut;
  shard::Alignment alignment;
  std::array<PlannedPart, formats::kMaxParts> parts{};

  /// Sections of the side that is cut, each of which may be padded at its end. Sections of lengths
  /// of their own never are.
  [[nodiscard]] std::uint32_t padded_sections() const {
    return cut.sections.is_equal() ? static_cast<std::uint32_t>(cut.sections.count()) : 1;
  }
  /// True if whole rows are encoded at once, not stretches of them.
  [[nodiscard]] bool takes_whole_rows() const { return carries_errors || keeps_group_order; }
  /// The part of this kind, or null.
  [[nodiscard]] const PlannedPart* find(formats::Part part) const {
    for (std::size_t p = 0; p < n_parts; ++p) {
      if (parts[p].part == part) return &parts[p];
    }
    return nullptr;
  }
};

/// A part in a file.
struct PartRef {
  std::uint32_t tensor = 0;  ///< index into Plan::tensors
  std::uint8_t part = 0;
  std::uint32_t place = 0;  ///< index into Plan::places
};

/// A weights file of the output, or a row of them that hold congruent slices: the same header, the
/// same offsets. The header is derived, not stored: Plan::header().
struct PlannedFile {
  struct Member {
    std::string path;                  ///< path in the output, in the folder of the first rank
    std::vector<std::uint32_t> ranks;  ///< ranks that load the file, ascending
  };
  /// A stored tensor that several parts make up, one behind the other, or none.
  struct Joined {
    formats::TensorSpec spec;
    std::uint32_t n_parts = 0;  ///< the next ones of `parts`; 0: a constant
    std::string bytes;          ///< contents of a constant
    std::uint64_t offset = 0;   ///< absolute
    bool is_turned = false;     ///< true: the transpose of its parts one below the other
    [[nodiscard]] bool is_constant() const { return n_parts == 0; }
  };
  std::string name;  ///< bare; of the first member
  std::vector<Member> members;
  std::uint32_t first_member = 0;  ///< number of the first among all members of all files
  std::uint64_t header_bytes = 0;  ///< length field and JSON of the header
  std::uint64_t n_bytes = 0;       ///< bytes of each member
  std::vector<Joined> joined;      ///< tensors in data order; empty: each part is a stored tensor
  std::vector<PartRef> parts;      ///< parts in data order
  bool keeps_dtype_order = false;  ///< true: the order of names would misalign a tensor
  bool is_here = true;             ///< false: another part of the job writes it, or it is linked
  bool is_linked = false;          ///< byte for byte that of the source: a hard link, or a copy
};

/// The order of the tensors in a file. By name, as the default loaders of engines read them: data
/// begin at a multiple of 16, and a file in which an element would lie across its boundary keeps
/// the order of dtypes and names.
enum class TensorOrder : std::uint8_t { kDtype, kName };
inline constexpr std::array<std::string_view, 2> kTensorOrders = {"dtype", "name"};

/// How logical tensors are assigned to files.
struct ShardPolicy {
  /// Nullopt: file names and distribution of the source. A number: a new file is opened when a
  /// tensor would take the current one beyond so many bytes of data.
  std::optional<std::uint64_t> max_shard_bytes = {};
  /// A number of even files for the main layers, or the next multiple of it with files below
  /// kRankFileBytes; MTP layers and towers have files of their own behind them. Excludes
  /// `max_shard_bytes`.
  std::optional<std::uint32_t> n_files = {};
  /// A power of two: tensors whose size is a multiple of it begin at one, and files are even. 0: in
  /// `order`.
  std::uint64_t align = 0;
  TensorOrder order = TensorOrder::kDtype;

  /// Multiple of bytes at which the data of a file begin.
  [[nodiscard]] std::uint64_t data_boundary() const {
    return align > 0 ? align : order == TensorOrder::kName ? 16 : 8;
  }
};

/// Tensors dealt to files of a size.
struct SizedFiles {
  std::vector<std::uint32_t> file_of;  ///< files, by index into TensorSource::tensors()
  std::uint32_t n_files = 1;
  [[nodiscard]] std::string name_of(std::uint32_t file) const;
};

/// How the model is to be cut, as asked for.
struct SlicingOptions {
  shard::Topology topology;
  std::string expert_map;        ///< text of --expert-map; empty: contiguous blocks
  std::string expert_map_where;  ///< its file, for errors
  bool redundant_experts = false, uneven_experts = false;
  shard::SharedExperts shared = shard::SharedExperts::kTp;
  shard::TpFit fit = shard::TpFit::kRefuse;
  std::string stages;  ///< layer ranges; empty: balanced by bytes
};

struct PlanOptions {
  ShardPolicy shards;
  const formats::Layout* layout = formats::find_layout("hf");
  SlicingOptions slicing;            ///< options of sliced layouts
  bool links = true;                 ///< files that several ranks load are hard links to one
  std::optional<JobPart> part = {};  ///< nullopt: this run writes every file
};

/// The options as manifest and journal have them, without `shards`.
formats::Json slicing_json(const PlanOptions& options);

/// The forms in which the tensors of the output are written.
struct Target {
  const formats::Dialect* dialect = nullptr;
  quantize::EncodeOptions encode;
  Via via = Via::kF32;
  bool power_of_two_scales = false;  ///< claimed for every kFp8Block tensor
};

/// The JSON around the weights; empty texts are not written.
struct PlannedJson {
  std::string config;
  std::string quant_method;                 ///< the method that `config` names
  std::vector<std::string> config_folders;  ///< folders that have a copy of `config`
  /// config.json of the same output unsliced, where that says something else.
  std::string whole_config;
  std::string index;          ///< index of an output in several files that is not sliced
  std::string native_config;  ///< inference config of layout deepseek-mp
  std::string description;    ///< text of Dialect::description_file
  /// The engine of the files of layout vllm-sharded, in the manifest; null: no engine's.
  formats::JsonValue engine;
};

/// Tensors by action, for people; of a part of a job, those in its files.
struct PlanCounts {
  std::uint64_t copied = 0, rewrapped = 0, cast = 0, quantized = 0, dropped = 0;
  std::uint64_t demoted = 0;   ///< cast tensors that no rule selects (PlannedTensor::is_demoted)
  std::uint64_t changed = 0;   ///< tensors whose values change
  std::uint64_t rescaled = 0;  ///< copied tensors with a joint global scale
  /// Tensors with searched scales, those with weights or moments too, and those with moments; only
  /// with --importance.
  std::uint64_t searched = 0, weighted = 0, by_moments = 0;
  /// With --gptq: tensors that it is for, and those of which the moments are known.
  std::uint64_t carriable = 0, carrying = 0;
  std::uint64_t fitted_to_bf16 = 0;  ///< tensors that --tp-fit bf16 left in, or made, BF16
};

/// The bytes that executing the plan moves, and holds in memory; of a part of a job, in that run.
struct PlanSizes {
  std::uint64_t bytes_in = 0;      ///< stored bytes that will be read, each counted once
  std::uint64_t bytes_out = 0;     ///< exact bytes of all weights files, each once, with headers
  std::uint64_t table_bytes = 0;   ///< estimate of source tables and plan
  std::uint64_t band_bytes = 0;    ///< the largest buffers that a tensor needs for a band
  std::uint64_t open_targets = 1;  ///< the most places of the parts of one tensor
};

/// The facts about the source that a plan needs in addition to its headers.
struct SourceFacts {
  /// Its quantization_config, or the one that its manifest remembers; null without one.
  formats::JsonValue quantization;
  /// config.json says that the head is the embedding, and another one is stored.
  bool has_head_apart = false;
  /// The family of a source that is read without one, to be copied as its files have it; null for
  /// any other.
  const formats::Family* family = nullptr;
  SourceCard card = {};
  /// Cards of the givers of a composed source, by Checkpoint::givers(); empty for others.
  std::vector<SourceCard> giver_cards = {};
};

/// The whole output, decided only from headers: a pure function of the facts read of the source,
/// recipe and options. Names, order, offsets and sizes are fixed before any byte is written.
struct Plan {
  const formats::Checkpoint& source;  ///< source checkpoint, which must outlive the plan
  Recipe recipe;                      ///< recipe with the default rules for this source
  PlanOptions options;
  SourceFacts source_facts;
  /// Something in the source cannot be read (formats::unread_codes): it is copied, and so is the
  /// JSON, which tells of it.
  bool is_whole_copy = false;
  Target target;
  formats::ValueChanges changes;       ///< changes of decoded values (Choices::editors)
  std::vector<PlannedTensor> tensors;  ///< tensors in the order of execution; dropped ones last
  /// Tensors that are quantized together, because a number over all of them must be known first:
  /// fused weights that share a global scale, or one weight with a scale of its own. Consecutive
  /// indices into `tensors`.
  std::vector<std::vector<std::uint32_t>> fused_sets;
  std::vector<PlannedPlace> places;
  std::vector<PlannedFile> files;
  std::uint32_t n_members = 0;            ///< files on disk
  std::optional<shard::Slicing> slicing;  ///< slicing of sliced layouts
  shard::Alignments alignments;  ///< sliced layouts: retiled or padded widths; tensors empty
  /// For sliced layouts with a limit for files: the files of layout `hf` with the same limit.
  std::optional<SizedFiles> unsliced_files;
  PlannedJson json;
  PlanCounts counts;
  PlanSizes sizes;
  std::vector<std::string> warnings;

  /// The logical tensor of the source.
  [[nodiscard]] const formats::LogicalTensor& tensor_of(const PlannedTensor& planned) const {
    return source.tensors()[planned.tensor];
  }
  /// The changes of its values; none for most.
  [[nodiscard]] std::span<const formats::ValueChange> changes_of(
      const PlannedTensor& planned) const;
  /// The stored tensors of the source that are read for it, by index; none for a dropped one.
  [[nodiscard]] std::vector<std::uint32_t> stored_of(const PlannedTensor& planned) const;
  /// The files of the source that hold those.
  [[nodiscard]] std::set<std::uint32_t> source_files_of(const PlannedTensor& planned) const;
  /// Name of a part's stored tensor in the output.
  [[nodiscard]] std::string part_name(const PlannedTensor& tensor, std::size_t part) const;
  /// Name of a part's stored tensor on the hub, whatever the layout calls it.
  [[nodiscard]] std::string hub_name(const PlannedTensor& tensor, std::size_t part) const;
  /// The shape of the whole part, before it is retiled, padded and cut.
  [[nodiscard]] formats::Shape part_shape(const PlannedTensor& tensor, std::size_t part) const;
  /// The shape under which a whole checkpoint has it: plain stacks may be one matrix there.
  [[nodiscard]] formats::Shape stored_shape(const PlannedTensor& tensor, std::size_t part) const;
  [[nodiscard]] std::span<const PlannedPlace> places_of(const PlannedPart& part) const {
    return std::span(places).subspan(part.first_place, part.n_places);
  }
  [[nodiscard]] const PlannedPlace& first_place(const PlannedPart& part) const {
    return places[part.first_place];
  }
  /// The shape of a weight in each of its slices, padding included.
  [[nodiscard]] formats::Shape slice_shape(const PlannedTensor& tensor) const;
  /// How a part, retiled and padded, is cut into slices; to those of one EP rank for stacked
  /// experts that are shared out.
  [[nodiscard]] shard::PartCut part_cut(const PlannedTensor& tensor, std::size_t part,
                                        std::uint32_t ep_rank = PlannedPlace::kAllExperts) const;
  /// A part as it is after retiling and padding.
  [[nodiscard]] shard::AlignedPart aligned(const PlannedTensor& tensor, std::size_t part) const;
  /// True if this run writes bytes of a tensor. Tensors that are dropped are those of part 0.
  [[nodiscard]] bool is_here(const PlannedTensor& tensor) const;
  /// True if this run reads the tensor: to write it, or for a number shared with one that it
  /// writes.
  [[nodiscard]] bool is_read(const PlannedTensor& tensor) const;
  /// Weights files on disk that this run writes.
  [[nodiscard]] std::uint32_t n_members_here() const;
  [[nodiscard]] bool is_sliced() const { return slicing.has_value(); }
  /// True if every tensor is the same as in the source, though maybe in other files.
  [[nodiscard]] bool is_copy() const;
  /// Layout `ranks`: each rank has a directory that is complete in itself.
  [[nodiscard]] bool has_rank_directories() const { return options.layout->has_rank_directories; }
  /// Path of a weights file below the output, by its number among all members.
  [[nodiscard]] const std::string& member_path(std::uint32_t member) const;
  /// Bytes [0, header_bytes) of a file.
  [[nodiscard]] std::string header(std::size_t file) const;
  /// A stretch of a file that is known before anything is read: its header, and each constant.
  struct KnownBytes {
    std::uint64_t offset = 0;
    std::string bytes;
  };
  [[nodiscard]] std::vector<KnownBytes> known_bytes(std::size_t file) const;
  /// Stored tensors that are read more than once: all of one in a fused set, else the parts that go
  /// with its codes, which are judged, decoded with and hashed.
  [[nodiscard]] std::vector<std::uint32_t> reread(const PlannedTensor& planned) const;
};

/// Rows and columns that share a scale in the output, before retiling; {0, 0} without scales. Where
/// a checkpoint chooses the columns: as stated_group_cols() has them.
std::array<std::uint64_t, 2> scale_block_of(const formats::LogicalTensor& tensor,
                                            const PlannedTensor& planned);

/// A stretch of a weights file that holds a slice of a part (or a replica of it).
struct PlannedSlice {
  std::uint32_t member = 0;  ///< among all members of all files
  std::uint64_t offset = 0, n_bytes = 0;
  std::size_t hash = 0;     ///< its position in the result of PartWriter::finish()
  std::uint32_t place = 0;  ///< index into Plan::places
  std::uint32_t slice = 0;
  formats::TurnedRows turned = {};  ///< turned: `n_bytes` are not one behind the other
};
/// The rows of a slice of this cut, at a place where a stored tensor is the transpose of its parts.
formats::TurnedRows turned_rows(const Plan& plan, const PlannedPlace& place,
                                const shard::PartCut& cut);
/// True if this run writes the file of the slice.
inline bool is_here(const Plan& plan, const PlannedSlice& slice) {
  return plan.files[plan.places[slice.place].file].is_here;
}
/// The slice of `at` in one member of its file.
PlannedSlice slice_at(const Plan& plan, const PlannedTensor& planned, const PartRef& at,
                      std::uint32_t member);
/// Every place of a part's bytes.
std::vector<PlannedSlice> slices_of(const Plan& plan, const PlannedTensor& planned,
                                    std::size_t part);

/// The weights file in which layout `hf` has a part: by the limit for files, or that of the part in
/// the source, or of its weight. Empty where it is unknown.
std::string unsliced_file(const Plan& plan, const PlannedTensor& planned, formats::Part part);

/// True if a tensor is decoded to FP32 tiles, band by band; other casts have a fused kernel.
bool goes_through_bands(const formats::LogicalTensor& tensor, const PlannedTensor& planned);

/// Hash over everything that decides the output's bytes: file names, headers, config, description
/// and index.
Hash128 plan_hash(const Plan& plan);

/// True if the output holds every value of a tensor that is not dropped, whatever its codes and
/// scales are. A value of a quantized source is what its codes and scales decode to, in F32. False:
/// this is not known before the tensor is converted.
bool is_exact_by_rule(const Plan& plan, const PlannedTensor& planned);

/// The names of the roles, by whether their tensors are exact by rule and by the schemes of source
/// and output; those that are exact first.
using RolesByExactness = std::map<std::tuple<bool, formats::SchemeId, formats::SchemeId>,
                                  std::set<std::string_view>, std::greater<>>;
RolesByExactness roles_by_exactness(const Plan& plan);

}  // namespace ingot::convert
