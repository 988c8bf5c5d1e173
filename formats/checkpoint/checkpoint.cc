#include "formats/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/passes.h"
#include "formats/container/safetensors.h"
#include "formats/family/families.h"
#include "formats/family/text_names.h"
#include "formats/records/manifest.h"
#include "formats/storage/stack_form.h"
#include "formats/storage/unread_codes.h"

// Opening goes from the outside in: config, files, headers, index, encodings, family. A draft goes
// through the passes of passes.h, each of which needs the ones before it. So faults are thrown
// where the draft is settled, all since the last time together; `check` collects them and goes on.

namespace ingot::formats {

namespace {

void require_one_directory(const Manifest& manifest, const std::filesystem::path& directory) {
  if (!manifest.slicing || manifest.slicing->ranks.empty()) return;
  throw Error(
      ErrorCode::kUnsupported,
      "holds a checkpoint cut for {} ranks, in {} and its like (name one of those directories)",
      manifest.slicing->n_ranks, manifest.slicing->ranks.front().directory)
      .in_file(directory.string());
}

/// Adds a remark on weights in schemes that are only read.
void remark_on_read_only(Draft& draft) {
  std::map<SchemeId, std::size_t> counts;
  for (const LogicalTensor& tensor : draft.tensors) {
    if (is_read_only(tensor.encoding.scheme)) ++counts[tensor.encoding.scheme];
  }
  std::vector<std::string> kinds;
  for (const auto& [scheme, n] : counts)
    kinds.push_back(fmt::format("{} weight{} of {}", n, n == 1 ? "" : "s", scheme_name(scheme)));
  if (kinds.empty()) return;
  draft.remarks.push_back(
      fmt::format("read, and written in other schemes only: {}", fmt::join(kinds, ", ")));
}

/// Adds a remark on plain stacks that are in another order than those of releases.
void remark_on_stacks(Draft& draft) {
  const auto is_other = [](const LogicalTensor& tensor) {
    return !is_quantized(tensor) && !is_usual_stack(tensor);
  };
  const auto first = std::ranges::find_if(draft.tensors, is_other);
  if (first == draft.tensors.end()) return;
  draft.remarks.push_back(fmt::format(
      "{} plain stacks of experts, as '{}', have another order of rows and columns than releases "
      "of family {}, by their shapes: read so, and written in the order of releases",
      std::ranges::count_if(draft.tensors, is_other), first->name, draft.family->name));
}

/// The fault of weights that have no value at all.
std::optional<Error> empty_weights(std::span<const StoredTensor> stored) {
  const auto is_empty = [](const StoredTensor& tensor) {
    return tensor.shape.size() == 1 && tensor.shape[0] == 0 && tensor.name.ends_with(".weight");
  };
  const auto first = std::ranges::find_if(stored, is_empty);
  if (first == stored.end()) return std::nullopt;
  const auto n = std::ranges::count_if(stored, is_empty);
  return Error(ErrorCode::kShapeMismatch,
               "'{}'{} of shape [0], empty: they were saved under DeepSpeed's ZeRO 3 without being "
               "gathered (save again with stage3_gather_16bit_weights_on_model_save, or put the "
               "shards of the training together with its zero_to_fp32.py)",
               first->name, n == 1 ? " is" : fmt::format(" and {} more are", n - 1));
}

bool has_mtp_tensor(const std::vector<LogicalTensor>& tensors, const ModelConfig& config) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
    return tensor.layer && *tensor.layer >= config.num_hidden_layers;
  });
}

/// Sets lacks_promised_mtp.
void look_for_mtp(Draft& draft) {
  // Only the last stage of a pipeline has those layers.
  const bool may_have_mtp =
      !draft.slices || draft.slices->slicing.rank->end_layer > draft.config.num_hidden_layers;
  draft.lacks_promised_mtp = !draft.family->rules.empty() &&
                             draft.config.num_nextn_predict_layers > 0 && may_have_mtp &&
                             !has_mtp_tensor(draft.tensors, draft.config);
}

/// True if every weight is understood from the headers, without the config's quantization.
bool headers_tell(Draft& draft) {
  const ErrorList faults = std::exchange(draft.faults, {});
  const auto quantization = std::exchange(draft.config.quantization, std::nullopt);
  const bool was_understood = draft.is_understood;
  recognise_encodings(draft);
  match_family(draft);
  const bool tell = draft.faults.empty() && !draft.family->rules.empty() &&
                    std::ranges::none_of(draft.tensors, &LogicalTensor::is_unknown);
  draft.tensors.clear();
  draft.faults = faults;
  draft.config.quantization = quantization;
  draft.is_understood = was_understood;
  return tell;
}

/// Looks for parts that show a form that is not read, whatever the config says.
void look_for_unread_parts(Draft& draft) {
  if (draft.unread_form) return;
  std::optional<Error> form = unread_parts(draft.stored);
  if (!form && draft.dialect->unread != nullptr)
    form = draft.dialect->unread(draft.config, draft.description);
  if (!form) form = empty_weights(draft.stored);
  if (form && draft.takes_any_names) {
    draft.remarks.push_back(form->message());
  } else {
    draft.unread_form = std::move(form);
  }
}

/// Refuses a form that is not read, with the remedy if there is one.
void refuse_unread_form(Draft& draft) {
  if (!draft.unread_form) return;
  draft.is_understood = false;
  const Error& unread = *draft.unread_form;
  if (headers_tell(draft)) {
    draft.faults.add(Error(unread.code(),
                           "{}; the headers say how each weight is stored: with a copy of "
                           "config.json that has no quantization_config it is read",
                           unread.message())
                         .in_file(unread.file()));
  } else {
    draft.faults.add(unread);
  }
  draft.settle();
}

void take_as_stored(Draft& draft) {
  for (std::uint32_t i = 0; i < draft.stored.size(); ++i) {
    LogicalTensor& tensor = draft.tensors.emplace_back();
    tensor.name = draft.stored[i].name;
    tensor.shape = draft.stored[i].shape;
    tensor.encoding.stored = StoredParts(i);
  }
}

/// Makes logical tensors of the stored ones: names, encodings, the family's grammar. Further faults
/// of names and shapes would only follow from one that leaves the draft without its meaning.
void understand(Draft& draft) {
  if (!draft.is_understood) return;
  if (draft.options.family == kAsStored) return take_as_stored(draft);
  make_parts(draft);
  repack_codes(draft);
  draft.settle();
  if (!draft.is_understood) return;
  recognise_encodings(draft);
  draft.settle();
  remark_on_read_only(draft);
  repeat_scales(draft);
  match_family(draft);
  remark_on_stacks(draft);
  match_slices(draft);
  draft.settle();
  look_for_mtp(draft);
}

}  // namespace

void Draft::settle() {
  for (const Error& fault : faults.errors()) {
    if (fault.code() == ErrorCode::kInterrupted) throw Error(fault);
  }
  if (options.faults == nullptr) {
    faults.throw_if_any();
  } else {
    for (const Error& fault : faults.errors()) options.faults->add(fault);
  }
  faults = {};
}

const StoredNames& Draft::names() {
  if (!names_) names_.emplace(stored);
  return *names_;
}

// Last of all: what is missing is known only then.
Checkpoint Checkpoint::judged(Draft draft) {
  Checkpoint opened(std::move(draft));
  judge_unknown(opened, *opened.state_);
  opened.state_->settle();
  opened.state_->forget_names();
  opened.state_->options = {};
  return opened;
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory, const OpenOptions& options) {
  require_finished_directory(directory);
  Draft draft;
  draft.directory = directory;
  draft.options = options;
  draft.takes_any_names = options.family == draft.family->name;

  std::optional<Manifest> manifest;
  draft.attempt([&] { manifest = read_manifest(directory); });
  if (manifest) require_one_directory(*manifest, directory);
  if (options.consumed_headers.empty()) require_own_format(directory);
  require_links(directory);
  draft.file_names = list_file_names(directory);
  if (read_config_words(draft)) choose_family(draft);
  choose_dialect(draft);
  read_description(draft);
  draft.is_understood = draft.faults.empty() && !draft.unread_form;
  if (manifest) read_rank_slices(draft, *manifest);
  draft.settle();

  list_weights(draft);
  SideListing beside = list_side_files(directory, draft.faults);
  draft.side_files = std::move(beside.files);
  draft.left_out = std::move(beside.left_out);
  draft.settle();

  read_headers(draft);
  resolve_duplicates(draft, /*may_read=*/true);
  check_index(draft);
  rename_aliases(draft);
  see_flat_stacks(draft);
  find_text_prefix(*draft.family, draft.stored, draft.config);
  name_tied_table(draft);
  count_mtp_layers(*draft.family, draft.stored, draft.config);
  judge_stray_files(draft);
  leave_out_identity_experts(draft);
  draft.index.weight_map = {};
  if (draft.stored.empty() && draft.is_complete) {
    draft.faults.add(
        Error(ErrorCode::kMissingTensor, "holds no tensors").in_file(directory.string()));
  }
  draft.settle();

  look_for_unread_parts(draft);
  refuse_unread_form(draft);
  understand(draft);
  return judged(std::move(draft));
}

Checkpoint Checkpoint::assemble(Draft draft, const OpenOptions& options) {
  INGOT_CHECK(draft.bytes != nullptr);
  draft.options = options;
  std::ranges::sort(draft.file_names);
  const bool has_family = choose_family(draft);
  if (draft.is_one_file) {
    make_parts(draft);
    leave_out_parts_of_others(draft);
  }
  if (has_family) {
    find_text_prefix(*draft.family, draft.stored, draft.config);
    count_mtp_layers(*draft.family, draft.stored, draft.config);
    see_flat_stacks(draft);
    leave_out_identity_experts(draft);
  }
  choose_dialect(draft);
  if (draft.unread_form) draft.faults.add(*draft.unread_form);
  draft.is_understood = draft.faults.empty();
  resolve_duplicates(draft, /*may_read=*/false);
  draft.settle();
  understand(draft);
  return judged(std::move(draft));
}

Draft Checkpoint::draft_of_view() const {
  Draft draft;
  draft.directory = state_->directory;
  draft.file_names = state_->file_names;
  draft.config = state_->config;
  draft.config_text = state_->config_text;
  draft.description = state_->description;
  draft.dialect = state_->dialect;
  draft.side_files = state_->side_files;
  draft.remarks = state_->remarks;
  draft.has_index = state_->has_index;
  draft.index = state_->index;
  draft.family = state_->family;
  draft.block = state_->block;
  draft.lacks_promised_mtp = state_->lacks_promised_mtp;
  draft.aliases = state_->aliases;
  draft.has_identity_experts = state_->has_identity_experts;
  draft.givers = state_->givers;
  return draft;
}

Checkpoint Checkpoint::view(Draft draft) {
  INGOT_CHECK(draft.bytes != nullptr);
  return Checkpoint(std::move(draft));
}

bool is_weights_file(const std::filesystem::path& path) {
  std::error_code failure;
  return path.extension() == kWeightsSuffix && std::filesystem::is_regular_file(path, failure);
}

Checkpoint open_weights_file(const std::filesystem::path& path, const std::filesystem::path& config,
                             OpenOptions options) {
  Draft draft;
  draft.directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  // For loader rules the file is a checkpoint in one file, whatever its name.
  draft.file_names = {"model.safetensors"};
  draft.weights = {path.filename().string()};
  if (!config.empty()) {
    draft.file_names.emplace_back(kConfigName);
    draft.config_text = read_text_file(config, kMaxConfigBytes);
    draft.config = parse_model_config(draft.config_text, config.string());
  } else if (options.family.empty()) {
    options.family = draft.family->name;
  }
  draft.options = options;
  draft.is_one_file = true;
  read_headers(draft);
  if (draft.stored.empty() && draft.faults.empty())
    draft.faults.add(Error(ErrorCode::kMissingTensor, "holds no tensors").in_file(path.string()));
  draft.settle();
  return Checkpoint::assemble(std::move(draft), options);
}

bool Checkpoint::has_file(std::string_view name) const {
  return std::binary_search(state_->file_names.begin(), state_->file_names.end(), name);
}

std::string_view Checkpoint::alias_of(const std::string& stored) const {
  const auto found = state_->aliases.find(stored);
  return found == state_->aliases.end() ? std::string_view() : found->second;
}

bool Checkpoint::may_have_lost(std::string_view name) const {
  const std::vector<std::string>& lost = state_->lost;
  // Without an index the file's tensors are unknown.
  if (lost.empty()) return !state_->is_complete;
  const std::string_view stem = module_name(name);
  for (auto at = std::lower_bound(lost.begin(), lost.end(), stem);
       at != lost.end() && at->starts_with(stem); ++at) {
    const char next = (*at)[std::min(stem.size(), at->size() - 1)];
    if (at->size() == stem.size() || next == '.' || next == '_') return true;
  }
  return false;
}

void Checkpoint::read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const {
  const StoredTensor& tensor = state_->stored.at(stored);
  INGOT_CHECK(offset <= tensor.n_bytes && out.size() <= tensor.n_bytes - offset);
  state_->bytes->read(stored, tensor, offset, out);
}

const SlicingRecord* Checkpoint::slicing() const {
  return state_->slices ? &state_->slices->slicing : nullptr;
}

}  // namespace ingot::formats
