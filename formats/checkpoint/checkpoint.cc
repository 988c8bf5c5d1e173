#include "formats/checkpoint/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/family_match.h"
#include "formats/checkpoint/rank_slices.h"
#include "formats/checkpoint/stored_head.h"
#include "formats/checkpoint/unknown_tensors.h"
#include "formats/checkpoint/unread_keys.h"
#include "formats/checkpoint/weights_headers.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/modelopt.h"
#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/recognition/encoding_recognition.h"
#include "formats/records/manifest.h"
#include "formats/relaid/decoded_values.h"
#include "formats/relaid/relaid_codes.h"
#include "formats/storage/stack_form.h"
#include "formats/storage/stored_names.h"
#include "formats/storage/tensor_source.h"
#include "formats/text/list_text.h"
#include "formats/text/spelling.h"

// Opening goes from the outside in: config, files, headers, index, encodings, family. Each stage
// needs the one before it, so faults are thrown at the end of a stage, all of that stage together;
// `check` collects them and goes on.

namespace ingot::formats {

namespace {

Error with_remedy_of_headers(const Error& unread) {
  return Error(unread.code(),
               "{}; the headers say how each weight is stored: with a copy of config.json that has "
               "no quantization_config it is read",
               unread.message())
      .in_file(unread.file());
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const FamilyEntry& family : family_entries()) names.push_back(family.name);
  return names;
}

/// Adds a remark that names the built-in family which a family file next to the weights hides.
void remark_on_family(const Family& family, const ModelConfig& config,
                      std::vector<std::string>& remarks) {
  if (family.file_hash.empty()) return;
  const Family* hidden = family_of(config);
  remarks.push_back(
      hidden == nullptr
          ? fmt::format("read as family {} of {}, which is next to the weights", family.name,
                        kFamilyFileName)
          : fmt::format("read as family {} of {}, which is next to the weights and so comes before "
                        "the program's own family {} for model_type '{}' (--family {} takes that)",
                        family.name, kFamilyFileName, hidden->name, config.model_type,
                        hidden->name));
}

/// Adds a remark with the keys of a model of another family that the forced one does not read.
void remark_on_forced(const Family& family, const ModelConfig& config,
                      std::vector<std::string>& remarks) {
  constexpr std::size_t kShown = 8;
  const Family* own = family_of(config);
  if (family.forward == nullptr || !family.file_hash.empty() || own == &family) return;
  const std::vector<std::string> keys = unread_keys(family, config);
  if (keys.empty()) return;
  remarks.push_back(fmt::format(
      "read as family {}, which does not know {} of config.json{}: where they change the "
      "computation, generate and verify compute another model",
      family.name, list_text(keys, kShown),
      own == nullptr
          ? std::string()
          : fmt::format(" (model_type '{}' is of family {})", config.model_type, own->name)));
}

const Family& chosen_family(const ModelConfig& config, const OpenOptions& options,
                            const std::filesystem::path& directory,
                            std::vector<std::string>& remarks) {
  const std::string& asked = options.family;
  const std::string beside = asked.empty() ? family_file_in(directory) : std::string();
  if (!beside.empty()) {
    const Family& family = *find_family(beside);
    remark_on_family(family, config, remarks);
    return family;
  }
  const Family* family = asked.empty() ? family_of(config) : find_family(asked);
  if (family != nullptr && !asked.empty()) remark_on_forced(*family, config, remarks);
  if (family != nullptr) return *family;
  if (!asked.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no family '{}' (there are {}){}", asked,
                fmt::join(family_names(), ", "), did_you_mean(asked, family_names()));
  }
  const std::string fact = fmt::format(
      "model_type '{}'{}{} belongs to no known family", config.model_type,
      config.architecture.empty() ? std::string() : fmt::format(" ({})", config.architecture),
      config.text.key.empty()
          ? std::string()
          : fmt::format(", '{}' in {},", config.text.model_type, config.text.key));
  if (options.unknown_as_generic) {
    remarks.push_back(
        fmt::format("{}: its tensors are shown as those of family generic, without roles and "
                    "layers (--family auto proposes a family)",
                    fact));
    return *find_family("generic");
  }
  throw Error(ErrorCode::kUnsupported,
              "{} (--family auto proposes one, from names and shapes; --family takes one of {}; "
              "--family-file a file that says what the family is, docs/families.md)",
              fact, fmt::join(family_names(), ", "))
      .in_file(kConfigName);
}

void require_one_directory(const Manifest& manifest, const std::filesystem::path& directory) {
  if (!manifest.slicing || manifest.slicing->ranks.empty()) return;
  throw Error(
      ErrorCode::kUnsupported,
      "holds a checkpoint cut for {} ranks, in {} and its like (name one of those directories)",
      manifest.slicing->n_ranks, manifest.slicing->ranks.front().directory)
      .in_file(directory.string());
}

/// Says which codes are seen as F32; empty where none are.
std::string remark_on_decoded(std::span<const LogicalTensor> tensors,
                              std::span<const StoredTensor> stored) {
  std::map<DType, std::size_t> counts;
  for (const LogicalTensor& tensor : tensors) {
    if (is_decoded(tensor.encoding)) ++counts[stored[tensor.encoding.stored.weight()].dtype];
  }
  std::vector<std::string> kinds;
  for (const auto& [dtype, n] : counts) {
    kinds.push_back(fmt::format("{} weight{} of {}", n, n == 1 ? "" : "s",
                                dtype == DType::kI8
                                    ? "8-bit codes with zero points or an order of columns"
                                    : dtype_name(dtype)));
  }
  if (kinds.empty()) return {};
  return fmt::format("read as their values in f32, and written in other schemes only: {}",
                     fmt::join(kinds, ", "));
}

/// Says which plain stacks are in another order than those of releases; empty where none are.
std::string remark_on_stacks(std::span<const LogicalTensor> tensors, const Family& family) {
  const auto is_other = [](const LogicalTensor& tensor) {
    return !is_quantized(tensor) && !is_usual_stack(tensor);
  };
  const auto first = std::ranges::find_if(tensors, is_other);
  if (first == tensors.end()) return {};
  return fmt::format(
      "{} plain stacks of experts, as '{}', have another order of rows and columns than releases "
      "of family {}, by their shapes: read so, and written in the order of releases",
      std::ranges::count_if(tensors, is_other), first->name, family.name);
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

}  // namespace

/// Faults of one stage.
class Checkpoint::Stage {
 public:
  explicit Stage(const OpenOptions& options) : collected_(options.faults) {}
  ErrorList& faults() { return faults_; }
  void settle() {
    if (collected_ == nullptr) {
      faults_.throw_if_any();
    } else {
      for (const Error& error : faults_.errors()) collected_->add(error);
    }
    faults_ = ErrorList();
  }
  /// Runs code that may throw; false when it did.
  template <typename Body>
  bool attempt(const Body& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      faults_.add(error);
      return false;
    }
  }

 private:
  ErrorList faults_;
  ErrorList* collected_;
};

void Checkpoint::State::understand(const StoredNames& stored_names, const OpenOptions& options,
                                   Stage& stage) {
  std::optional<InputMajorLayout> layout;
  if (!stage.attempt([&] { layout = input_major_layout(config); })) {
    // Nothing else can be said of its codes.
    stage.settle();
    is_understood = false;
    return;
  }
  const RelaidModel relaid{.stored = stored, .bytes = bytes, .is_complete = is_complete};
  bool is_relaid = layout.has_value();
  if (layout) {
    relay_codes(*layout, relaid, stage.faults());
  } else {
    is_relaid = relay_packed_bytes(config, relaid, stage.faults());
  }
  const bool has_unread = std::ranges::any_of(stage.faults().errors(), [](const Error& fault) {
    return fault.code() == ErrorCode::kUnsupported || fault.code() == ErrorCode::kMismatch;
  });
  stage.settle();
  std::optional<StoredNames> relaid_names;
  if (has_unread) {
    is_understood = false;
    return;
  }
  if (is_relaid) relaid_names.emplace(stored);
  const StoredNames& names = relaid_names ? *relaid_names : stored_names;
  const bool names_are_known = !family->rules.empty();
  const NameGrammar grammar(*family, config);
  // Checkpoints of other families in unread forms were refused before.
  const bool may_be_unread = family == find_family("generic");
  tensors = recognise_encodings(
      {.stored = stored,
       .names = names,
       .files = bytes->files(),
       .block = block,
       .config = config,
       .grammar = &grammar,
       .names_are_known = names_are_known,
       .is_complete = is_complete,
       .is_unread = may_be_unread ? in_unread_forms(stored) : std::vector<bool>()},
      stage.faults());
  stage.settle();
  if (std::string remark = remark_on_decoded(tensors, stored); !remark.empty())
    remarks.push_back(std::move(remark));
  decode_values(tensors, stored, bytes);

  const FamilyMatch match{.family = *family,
                          .config = config,
                          .stored = stored,
                          .files = bytes->files(),
                          .allow_unknown = options.allow_unknown,
                          .are_slices = slices != nullptr};
  is_understood = match_family(match, tensors, stage.faults());
  if (std::string remark = remark_on_stacks(tensors, *family); !remark.empty())
    remarks.push_back(std::move(remark));
  if (slices) {
    const SliceMatch slice_match{.slices = *slices,
                                 .family = *family,
                                 .config = config,
                                 .stored = stored,
                                 .files = bytes->files()};
    match_slices(slice_match, tensors, stage.faults());
  }
  stage.settle();
  look_for_mtp();
}

void Checkpoint::State::look_for_mtp() {
  // Only the last stage of a pipeline has those layers.
  const bool may_have_mtp = !slices || slices->slicing.rank->end_layer > config.num_hidden_layers;
  lacks_promised_mtp = !family->rules.empty() && config.num_nextn_predict_layers > 0 &&
                       may_have_mtp && !has_mtp_tensor(tensors, config);
}

bool Checkpoint::State::headers_tell(const StoredNames& names, const OpenOptions& options) const {
  ModelConfig plain = config;
  plain.quantization.reset();
  ErrorList faults;
  const NameGrammar grammar(*family, plain);
  std::vector<LogicalTensor> found = recognise_encodings({.stored = stored,
                                                          .names = names,
                                                          .files = bytes->files(),
                                                          .block = block,
                                                          .config = plain,
                                                          .grammar = &grammar,
                                                          .names_are_known = !family->rules.empty(),
                                                          .is_complete = is_complete},
                                                         faults);
  match_family({.family = *family,
                .config = plain,
                .stored = stored,
                .files = bytes->files(),
                .allow_unknown = options.allow_unknown,
                .are_slices = slices != nullptr},
               found, faults);
  return faults.empty() && !family->rules.empty() &&
         std::ranges::none_of(found, &LogicalTensor::is_unknown);
}

Checkpoint Checkpoint::judged(std::unique_ptr<State> state, const OpenOptions& options,
                              bool cuts_are_known, Stage& stage) {
  Checkpoint opened(std::move(state));
  ErrorList shown;
  std::ranges::move(judge_unknown(opened, options.allow_unknown, cuts_are_known,
                                  options.unknown_as_generic ? shown : stage.faults()),
                    std::back_inserter(opened.state_->remarks));
  for (const Error& fault : shown.errors()) opened.state_->remarks.push_back(fault.message());
  stage.settle();
  return opened;
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory, const OpenOptions& options) {
  require_finished_directory(directory);
  auto state = std::make_unique<State>();
  state->directory = directory;
  Stage stage(options);

  std::optional<Manifest> manifest;
  stage.attempt([&] { manifest = read_manifest(directory); });
  if (manifest) require_one_directory(*manifest, directory);
  if (options.consumed_headers.empty()) require_own_format(directory);
  require_links(directory);
  bool any_names = options.family == state->family->name;
  stage.attempt([&] {
    if (std::optional<std::string> text = read_config(directory, any_names)) {
      state->config = parse_model_config(*text, kConfigName);
      state->config_text = std::move(*text);
    }
    const Family& family = chosen_family(state->config, options, state->directory, state->remarks);
    state->config = config_of(family, state->config);
    require_widths(family, state->config);
    any_names = &family == find_family("generic");
    state->family = &family;
  });
  std::optional<Error> unread;  // the way of quantizing that config.json names
  stage.attempt([&] {
    state->file_names = list_file_names(directory);
    const Dialect* dialect = known_dialect(state->config, state->file_names);
    if (dialect != nullptr) {
      state->dialect = dialect;
    } else if (!any_names) {
      unread = unread_form(state->config);
      return;
    } else {
      // An unknown form may be copied; conversions refuse codes that no reader here knows.
      state->remarks.push_back(unread_form(state->config).message());
    }
    state->block = fp8_block_size(state->config);
    state->description = read_description(directory, *state->dialect);
    if (auto form = unread_description(*state->dialect, state->description)) {
      if (!any_names) {
        unread = std::move(form);
      } else {
        state->remarks.push_back(form->message());
      }
    }
  });
  state->is_understood = stage.faults().empty() && !unread;
  if (manifest) state->slices = read_rank_slices(directory, *manifest, stage.faults());
  stage.settle();

  WeightsListing listing = list_weights(
      directory, options.consumed_headers,
      {.accept_any = any_names, .ignores_index = options.ignores_index}, stage.faults());
  SideListing beside = list_side_files(directory, stage.faults());
  state->side_files = std::move(beside.files);
  state->has_index = listing.has_index;
  stage.settle();

  std::vector<WeightsFile> located =
      locate_files(listing.files, directory, options.consumed_headers);
  state->stored = read_headers(located, options.threads, stage.faults());
  state->is_complete = listing.is_complete && stage.faults().empty();
  state->bytes = std::make_unique<CheckpointFiles>(std::move(located));
  StoredNames names(state->stored);
  settle_copies({.index = listing.has_index ? &listing.index : nullptr,
                 .bytes = state->bytes.get(),
                 .merges_equal = options.merges_copies,
                 .by_index = options.allow_duplicate},
                state->bytes->files(), state->stored, names, state->remarks, stage.faults());
  if (listing.has_index)
    check_index(listing.index, state->stored, names, state->bytes->files(), stage.faults());
  if (!state->is_complete) state->lost = lost_names(listing.index, state->bytes->files());
  std::vector<std::string> renamed = rename_aliases(*state->family, state->stored, state->lost);
  if (!renamed.empty()) names = StoredNames(state->stored);
  std::ranges::move(renamed, std::back_inserter(state->remarks));
  see_flat_stacks(*state->family, state->config, state->stored);
  find_text_prefix(*state->family, state->stored, state->config);
  state->table_called_head = name_tied_table(*state->family, state->config, state->stored);
  if (!state->table_called_head.empty()) names = StoredNames(state->stored);
  count_mtp_layers(*state->family, state->stored, state->config);
  const StrayCheck strays{
      .directory = directory,
      .family = *state->family,
      .config = state->config,
      .stored = state->stored,
      .names = names,
      .index_name = listing.has_index ? std::string_view(listing.index.name) : std::string_view()};
  settle_strays(strays, listing.strays, beside.left_out, stage.faults());
  std::sort(beside.left_out.begin(), beside.left_out.end(),
            [](const LeftOut& a, const LeftOut& b) { return a.path < b.path; });
  for (std::string& remark : left_out_remarks(beside.left_out))
    state->remarks.push_back(std::move(remark));
  state->index_frame = std::move(listing.index.frame);
  listing = {};
  if (state->stored.empty() && state->is_complete) {
    stage.faults().add(
        Error(ErrorCode::kMissingTensor, "holds no tensors").in_file(directory.string()));
  }
  stage.settle();
  if (!unread) {
    std::optional<Error> form = unread_parts(state->stored);
    if (!form && state->dialect == &kModeloptDialect)
      form = unread_modelopt(state->config, state->description, state->stored);
    if (!form) form = empty_weights(state->stored);
    if (form && any_names) {
      state->remarks.push_back(form->message());
    } else if (form) {
      unread = std::move(form);
      state->is_understood = false;
    }
  }
  if (unread) {
    const bool headers_tell = state->headers_tell(names, options);
    stage.faults().add(headers_tell ? with_remedy_of_headers(*unread) : *unread);
    stage.settle();
  }
  // Further faults of names and shapes would only follow from that one.
  if (state->is_understood) state->understand(names, options, stage);
  return judged(std::move(state), options, true, stage);
}

Checkpoint Checkpoint::assemble(AssembledModel model, const OpenOptions& options) {
  INGOT_CHECK(model.bytes != nullptr);
  auto state = std::make_unique<State>();
  state->directory = std::move(model.directory);
  state->config = std::move(model.config);
  state->config_text = std::move(model.config_text);
  state->description = std::move(model.description);
  state->side_files = std::move(model.side_files);
  state->remarks = std::move(model.remarks);
  state->stored = std::move(model.stored);
  state->bytes = std::move(model.bytes);
  state->index_frame = std::move(model.index_frame);
  state->slices = std::move(model.slices);
  state->file_names =
      model.file_names ? std::move(*model.file_names) : list_file_names(state->directory);
  std::sort(state->file_names.begin(), state->file_names.end());
  // The join of slices has looked for all that the model has.
  state->has_index = !model.file_names || std::binary_search(state->file_names.begin(),
                                                             state->file_names.end(), kIndexName);
  Stage stage(options);

  stage.attempt([&] {
    const Family& family = chosen_family(state->config, options, state->directory, state->remarks);
    state->config = config_of(family, state->config);
    require_widths(family, state->config);
    find_text_prefix(family, state->stored, state->config);
    count_mtp_layers(family, state->stored, state->config);
    see_flat_stacks(family, state->config, state->stored);
    state->family = &family;
  });
  stage.attempt([&] {
    const Dialect* dialect =
        model.dialect != nullptr ? model.dialect : known_dialect(state->config, state->file_names);
    if (dialect != nullptr) {
      state->dialect = dialect;
    } else if (state->family != find_family("generic")) {
      throw unread_form(state->config);
    }
    state->block = fp8_block_size(state->config);
  });
  state->is_understood = stage.faults().empty();
  // A caller that knows the tensors has them by their places in `stored`.
  StoredNames names(state->stored);
  if (!model.tensors)
    settle_copies({}, state->bytes->files(), state->stored, names, state->remarks, stage.faults());
  stage.settle();
  if (model.tensors) {
    // A view of a checkpoint that was judged.
    state->tensors = std::move(*model.tensors);
    state->look_for_mtp();
    return Checkpoint(std::move(state));
  }
  if (state->is_understood) state->understand(names, options, stage);
  return judged(std::move(state), options, model.cuts_are_known, stage);
}

bool Checkpoint::has_file(std::string_view name) const {
  return std::binary_search(state_->file_names.begin(), state_->file_names.end(), name);
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
