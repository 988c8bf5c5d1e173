#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/plan/plan.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"

// The passes that make a plan, in the order in which make_plan() (convert/convert.cc) runs them.

namespace ingot::convert {

struct BandPlan;

/// Decides for every logical tensor: action, scheme, storage, fused sets, input scales. Fills the
/// target and the tensors (in source order, without parts). Throws, collected, for tensors that
/// cannot be held or computed; adds a warning where rules narrow plain tensors or spare them.
void decide(Plan& plan);

/// Throws kInvalidArgument, collected, for options of `recipe.given` that have no effect on the
/// plan, each with the option or scheme that it belongs to.
void refuse_idle_options(const Plan& plan);

/// Decides how every tensor is cut: resolves the experts and the stages, sets Plan::slicing and
/// Plan::alignments, and each tensor's cut and alignment; tensors that cannot be cut between blocks
/// are treated as --tp-fit says. Throws, collected, for tensors that cannot be cut, and
/// kUnsupported for those that the layout cannot hold.
void slice_tensors(Plan& plan);

/// Throws, collected, for tensors that no row of the family has and that a conversion with --to
/// would have to decide about (formats/checkpoint/promised_tensors.h).
void refuse_unknown(const Plan& plan);

/// For a source with codes that no reader knows: sets Plan::is_whole_copy, and throws kUnsupported
/// for a plan that would do anything but copy.
void keep_unread_codes(Plan& plan);

/// The fate of a source's scales of a cache of keys and values, and of its config's words for it.
enum class CacheFate : std::uint8_t {
  kKept,       ///< words and scales stay as they are
  kConverted,  ///< both are written as the target's dialect has them
  kLeftOut,
  kMade,  ///< --kv-scales: both are new, and the source's are left out
};
/// In the same dialect they are kept, unless the source's weights are quantized and the output's
/// are not. In another, a cache in FP8 without offsets is converted if the dialect has a row of
/// formats/dialect/cache_words.h and the output is quantized, others are left out. Scales of which
/// the config says nothing are never left out.
CacheFate cache_fate(const formats::Checkpoint& source, const formats::Dialect& target,
                     bool is_target_quantized);
CacheFate cache_fate(const Plan& plan);
/// The source with scales under the names of the target where they are converted or made. `recipe`
/// has the default rules. Throws kUnsupported for scales of a dialect whose engines take none, and
/// the errors of KvRanges::scales_for().
std::shared_ptr<const formats::Checkpoint> with_caches_as_written(
    std::shared_ptr<const formats::Checkpoint> source, const Recipe& recipe);
/// Puts the keys of a block or description that are about the cache into another.
void take_over_caches(const formats::Json& source, formats::Json& block);
/// Drops the scales of a cache that is left out, with a warning of how many there are and their
/// range; warns where engines need a flag for those that are converted.
void settle_cache_scales(Plan& plan);
/// Puts the words about the cache that the output has into its block and description.
void state_caches(const Plan& plan, formats::Json& block, formats::Json& description);

/// Gives every tensor its parts: dtypes and sizes of the whole.
void plan_parts(Plan& plan);

/// Assigns the parts to files: fills Plan::files (without header, sizes and data order) and
/// Plan::places (without offsets).
void assign_files(Plan& plan);

/// Fixes order, offsets and sizes in every file; the layout of docs/formats.md, "Writing".
void lay_out_files(Plan& plan);

/// The tensors of a file as its header has them: in the order of their data.
std::vector<formats::TensorSpec> header_tensors(const Plan& plan, const PlannedFile& file);

/// The module that loaders fuse the tensor into with others, which share a global scale; its own
/// where it is not fused.
std::string fused_module(const formats::LogicalTensor& tensor);

/// True if a row of static activations has exactly the parts for activations that a stored weight
/// has, each scale one number.
bool keeps_inputs(const formats::StorageRow& row, const formats::Checkpoint& source,
                  const formats::LogicalTensor& tensor);

/// Says of every file whether this run writes it (PlannedFile::is_here): dealt_parts().
void deal_files(Plan& plan);

/// Sorts the tensors as they are executed: along the output files, so that writes are sequential.
void order_for_execution(Plan& plan);

/// Fills Plan::counts and Plan::sizes.
void measure_plan(Plan& plan);

/// Fills Plan::json, and adds warnings about promises of the source's config that its tensors do
/// not keep. quantization_config and num_nextn_predict_layers are derived; everything else of
/// config.json is carried through. Ranks get the config of the whole model, with the blocks that
/// were retiled and the widths that were padded. A file with the meaning of the source's is the
/// source's to the byte; any other has its form.
void derive_json(Plan& plan);

/// The source's, for an index of the output. Metadata are about the source's tensors, as
/// config.json is: an index of slices has them too, one of tensors that were converted or dropped
/// has not.
formats::IndexFrame index_frame(const Plan& plan);

// Questions of the passes to the layout.

/// The functions of a layout's row for a conversion, by formats::LayoutId.
struct LayoutFunctions {
  /// Makes plain the tensors that the layout holds plain; null: none.
  void (*make_plain)(Plan& plan) = nullptr;
  /// Throws, collected, for tensors that the layout cannot hold; null: it holds all.
  void (*require_holdable)(const Plan& plan) = nullptr;
  /// Throws, collected, for tensors that --tp-fit changed and the layout cannot hold; null: it
  /// holds all.
  void (*require_fits)(const Plan& plan) = nullptr;
  /// Rows to which a tensor is padded, whatever --tp-fit says; 0: it is not; null: none is.
  std::uint64_t (*padded_rows)(const Plan& plan, const PlannedTensor& planned) = nullptr;
  /// First layers of the stages, where the engine divides the layers itself; null: by bytes.
  std::vector<std::uint32_t> (*stages)(std::uint32_t n_layers, std::uint32_t pp) = nullptr;
  /// True if a part is not in the files, since their readers know it anyway; null: no.
  bool (*leaves_out)(formats::Part part) = nullptr;
  /// Assigns parts to files and names these.
  void (*assign_files)(Plan& plan);
  /// The name of a stored tensor, from that of the hub; null: the same.
  std::string (*stored_name)(const std::string& hub_name,
                             const formats::ModelConfig& config) = nullptr;
  /// Puts the parts of a file in order and says of which stored tensors they are pieces
  /// (PlannedFile::joined); null: each is one of its own, in the order of names.
  void (*join_parts)(const Plan& plan, PlannedFile& file) = nullptr;
  /// Fills the JSON that only this layout has; null: none.
  void (*derive_json)(Plan& plan) = nullptr;
};
const LayoutFunctions& functions_of(const formats::Layout& layout);

extern const LayoutFunctions kHubLayout, kRanksLayout, kDeepseekMpLayout, kShardedStateLayout;

/// Ranks load several files at once, and a hub file is no larger.
inline constexpr std::uint64_t kRankFileBytes = 5'000'000'000;

/// The action for a tensor that is kept or cast in a plain scheme.
void become_plain(const formats::LogicalTensor& tensor, PlannedTensor& planned,
                  formats::SchemeId scheme);

/// Deals tensors to files as the hub does it: in the order of the source, a new file when the next
/// would exceed the limit. Parts stay together.
SizedFiles deal_by_size(const Plan& plan, std::uint64_t max_bytes);

/// Appends the places of a part to Plan::places.
void set_places(Plan& plan, PlannedPart& part, std::span<const PlannedPlace> places);
/// Appends a file that is not one of a row.
PlannedFile& add_file(Plan& plan, std::string name);
/// EP ranks that hold a tensor; empty: it is not an expert's, or every rank has all experts.
std::vector<std::uint32_t> ep_ranks_of(const Plan& plan, const PlannedTensor& planned);

/// Modules that the source's own block leaves plain, where the output's block is made of it;
/// sorted.
std::vector<std::string> modules_left_plain(const Plan& plan);

/// Judges stored words about quantization that go with codes and are no part of the values. Scales
/// of outputs, and of inputs that the source says are not quantized, are left out with a warning
/// where the codes are not copied; tensors of unknown meaning next to such codes, and
/// scales and ranges next to plain weights that are quantized, are refused.
void settle_words_of_codes(Plan& plan, ErrorList& refusals);

/// Refuses MTP layers that config.json does not count, unless they are repaired, and those with
/// another number of experts, unless they are left out.
void require_sound_mtp(const Plan& plan, ErrorList& refusals);

// The steps of decide(), apart from the rules and the dialect.

/// Fills Plan::changes from the editors of the recipe. Adds faults as ValueEditor::add_changes()
/// does, and refuses a row whose length two changes give (kUnsupported).
void find_changes(Plan& plan, ErrorList& refusals);

/// Memory for the numbers that change a tensor, of one matrix of it, and for tiles.
std::uint64_t change_bytes(std::span<const formats::ValueChange> changes, const BandPlan& bands);

/// The reason why loaders of the target do not read this tensor, a stack or none, in the scheme
/// that it becomes; empty: they may, or the user asked for it (`choices.experts`).
std::string expert_form_fault(const Plan& plan, const PlannedTensor& planned);

/// The tensors of --scales-from by name.
class ReleasedTensors {
 public:
  explicit ReleasedTensors(const formats::Checkpoint* release) {
    if (release == nullptr) return;
    for (const formats::LogicalTensor& tensor : release->tensors())
      by_name_.emplace(tensor.name, &tensor);
  }
  /// Null when the release has none of that name.
  [[nodiscard]] const formats::LogicalTensor* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string_view, const formats::LogicalTensor*> by_name_;
};

/// Sets PlannedTensor::scales of the weights that take those of --scales-from. Refuses weights that
/// the release lacks (kMissingTensor), has in another scheme, shape or block (kMismatch), or whose
/// scales mean something else there (kUnsupported). Does nothing without --scales-from.
void set_released_scales(Plan& plan, const ReleasedTensors& released, ErrorList& refusals);

/// Joins the tensors that share a global scale into Plan::fused_sets: those that loaders fuse, and
/// each other tensor of such a scheme by itself. Fused tensors must become one scheme, all of them
/// by the same action where they share a scale; others are refused.
void join_fused_tensors(Plan& plan, ErrorList& refusals);

/// Judges NVFP4 weights that loaders fuse and several checkpoints gave, and that keep their codes:
/// one global scale serves them all. Refuses those that differ (kMismatch), or sets
/// PlannedTensor::joint_global where the recipe asks for it. Does nothing where nothing is
/// composed.
void agree_on_globals(Plan& plan, ErrorList& refusals);
/// Refuses scales of activations that an overlay gives, and that no engine would use, since the
/// config says something else of these activations.
void require_used_inputs(const Plan& plan, ErrorList& refusals);

/// Sets PlannedTensor::input of every tensor whose storage row has static activations, from the
/// ranges of the calibration or from --input-scale. Fused tensors see the same input and get the
/// scale of their joint range. Modules without a range are refused, with the list.
void set_input_scales(Plan& plan, ErrorList& refusals);

/// True if the output has a part that not every tensor of its form has: it is kept, or new.
bool has_optional_part(const PlannedTensor& planned, const formats::LogicalTensor& tensor,
                       formats::Part part);

/// True if --search chooses a tensor's scales.
bool searches_scales(const Plan& plan, const PlannedTensor& planned);

/// True if --gptq is for a tensor: its codes can be chosen column by column.
bool can_carry_errors(const Plan& plan, const PlannedTensor& planned);
/// The whole second moments of the inputs of each of a tensor's input_matrices() in --importance;
/// null without.
std::vector<const formats::StatisticTensor*> moments_of(const Plan& plan,
                                                        const PlannedTensor& planned);
/// Marks the tensors whose errors are carried on (PlannedTensor::carries_errors) and counts them.
/// Refuses --gptq without --importance (kInvalidArgument), moments of another size
/// (kShapeMismatch), and statistics without the moments of any (kMissingTensor). Does nothing
/// without --gptq.
void set_moments(Plan& plan, ErrorList& refusals);

/// Marks the tensors whose scales are searched with weights (PlannedTensor::is_weighted) or moments
/// (by_moments), and counts them. Refuses statistics of another width (kShapeMismatch); a search by
/// moments without --importance, and a plan in which nothing is weighted, because no scales are
/// searched (kInvalidArgument); statistics that know none of the tensors, or, for a search by
/// moments, no moments of them (kMissingTensor). Without --importance it does nothing else.
void set_importance(Plan& plan, ErrorList& refusals);

}  // namespace ingot::convert
