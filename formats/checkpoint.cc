#include "formats/checkpoint.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint_files.h"
#include "formats/checkpoint_listing.h"
#include "formats/encoding_recognition.h"
#include "formats/family_match.h"
#include "formats/safetensors.h"
#include "formats/stored_names.h"

// Opening goes from the outside in: config, files, headers, index, encodings, family. Each stage
// needs the one before it, so faults are thrown at the end of a stage, all of that stage together;
// `check` collects them and goes on.

namespace ingot::formats {

struct Checkpoint::State {
  std::filesystem::path directory;
  ModelConfig config;
  const Family* family = nullptr;
  const Dialect* dialect = nullptr;
  Json description;
  std::vector<SourceFile> files;
  std::optional<CheckpointFiles> contents;
  std::vector<StoredTensor> stored;
  std::vector<LogicalTensor> tensors;
  std::vector<SideFile> side_files;
  bool has_index = false;
  bool lacks_promised_mtp = false;
};

namespace {

constexpr std::uint64_t kMaxConfigBytes = 64'000'000;
// One line per stored tensor: of the largest released model 20 MB.
constexpr std::uint64_t kMaxDescriptionBytes = 256'000'000;

/// Faults of one stage.
class Stage {
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
  /// Runs what may throw; false when it did.
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

std::string family_names() {
  std::vector<std::string_view> names;
  for (const Family* family : families()) names.push_back(family->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const Family& chosen_family(const ModelConfig& config, const std::string& asked) {
  const Family* family = asked.empty() ? family_of(config) : find_family(asked);
  if (family != nullptr) return *family;
  if (!asked.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no family '{}' (there are {})", asked, family_names()));
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("model_type '{}' belongs to no known family (--family takes one of {})",
                          config.model_type, family_names()))
      .in_file(kConfigName);
}

ModelConfig read_config(const std::filesystem::path& directory, bool may_be_missing) {
  const std::filesystem::path path = directory / kConfigName;
  try {
    return parse_model_config(read_text_file(path, kMaxConfigBytes), kConfigName);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    if (may_be_missing) return {};
    throw Error(ErrorCode::kNotFound, "is missing (fetch it; --family generic goes without)")
        .in_file(path.string());
  }
}

/// Null when the dialect has no such file or it is not here: config.json may say it all.
Json read_description(const std::filesystem::path& directory, const Dialect& dialect) {
  if (dialect.description_file.empty()) return nullptr;
  const std::filesystem::path path = directory / dialect.description_file;
  // Not exists(): a link that leads nowhere is a broken file, not none.
  std::error_code failure;
  if (std::filesystem::symlink_status(path, failure).type() ==
      std::filesystem::file_type::not_found)
    return nullptr;
  Json description =
      parse_json(read_text_file(path, kMaxDescriptionBytes), dialect.description_file);
  if (!description.is_object()) {
    throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(dialect.description_file);
  }
  return description;
}

std::vector<WeightsFile> locate(const std::vector<std::string>& names,
                                const std::filesystem::path& directory,
                                const std::filesystem::path& consumed_headers) {
  std::vector<WeightsFile> files;
  for (const std::string& name : names) {
    WeightsFile& file = files.emplace_back();
    file.facts.name = name;
    file.path = directory / name;
    std::error_code failure;
    const bool is_here = std::filesystem::symlink_status(file.path, failure).type() !=
                         std::filesystem::file_type::not_found;
    if (!is_here && !consumed_headers.empty())
      file.saved_header = consumed_headers / (name + ".header");
  }
  return files;
}

/// Reads every header and completes the files' facts. A file that cannot be read is reported and
/// has no tensors.
std::vector<StoredTensor> read_headers(std::vector<WeightsFile>& files, std::size_t threads,
                                       ErrorList& faults) {
  std::vector<SafetensorsHeader> headers(files.size());
  std::vector<std::optional<Error>> failures(files.size());
  parallel_for(files.size(), std::max<std::size_t>(threads, 1), [&](std::size_t i) {
    try {
      const WeightsHeader raw = read_weights_header(files[i]);
      headers[i] = parse_safetensors_header(raw.bytes, raw.file_bytes, files[i].facts.name);
    } catch (const Error& error) {
      failures[i] = error;
    }
  });
  std::size_t n_tensors = 0;
  for (const SafetensorsHeader& header : headers) n_tensors += header.tensors.size();
  std::vector<StoredTensor> stored;
  stored.reserve(n_tensors);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (failures[i]) faults.add(*failures[i]);
    files[i].facts.n_bytes = headers[i].file_bytes;
    files[i].facts.data_start = headers[i].data_start;
    for (StoredTensor& tensor : headers[i].tensors) {
      tensor.file = static_cast<std::uint32_t>(i);
      stored.push_back(std::move(tensor));
    }
    headers[i] = {};
  }
  return stored;
}

void check_duplicates(const std::vector<StoredTensor>& stored, const StoredNames& names,
                      const std::vector<SourceFile>& files, ErrorList& faults) {
  const auto sorted = names.sorted();
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const StoredTensor& tensor = stored[sorted[i]];
    const StoredTensor& before = stored[sorted[i - 1]];
    if (tensor.name != before.name) continue;
    faults.add(Error(ErrorCode::kDuplicate,
                     fmt::format("is also in {} (which one is meant? move the other file away)",
                                 files[before.file].name))
                   .in_file(files[tensor.file].name)
                   .in_tensor(tensor.name));
  }
}

/// The index against the files, both ways. Files that could not be read have been reported and are
/// passed over.
void check_index(const CheckpointIndex& index, const std::vector<StoredTensor>& stored,
                 const StoredNames& names, const std::vector<SourceFile>& files,
                 ErrorList& faults) {
  std::vector<bool> is_indexed(stored.size(), false);
  for (const auto& [tensor, file] : index.weight_map) {
    const auto at = std::lower_bound(
        files.begin(), files.end(), file,
        [](const SourceFile& a, const std::string& name) { return a.name < name; });
    if (at == files.end() || at->name != file || at->data_start == 0) continue;
    const auto found = names.find(tensor);
    if (found) is_indexed[*found] = true;
    if (found && files[stored[*found].file].name == file) continue;
    const std::string fact =
        found ? fmt::format("it is in {}", files[stored[*found].file].name) : "it is not there";
    faults.add(Error(ErrorCode::kMissingTensor,
                     fmt::format("{} says it is in this file, {} (fetch index and file again)",
                                 kIndexName, fact))
                   .in_file(file)
                   .in_tensor(tensor));
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_indexed[i] || names.find(stored[i].name) != i) continue;
    faults.add(Error(ErrorCode::kMissingTensor,
                     fmt::format("is not named by {} (fetch the index again)", kIndexName))
                   .in_file(files[stored[i].file].name)
                   .in_tensor(stored[i].name));
  }
}

bool has_mtp_tensor(const std::vector<LogicalTensor>& tensors, const ModelConfig& config) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
    return tensor.layer && *tensor.layer >= config.num_hidden_layers;
  });
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& directory, const OpenOptions& options) {
  require_finished_directory(directory);
  auto state = std::make_unique<State>();
  state->directory = directory;
  state->family = find_family("generic");
  state->dialect = find_dialect("deepseek");
  Stage stage(options);

  const bool any_names = options.family == state->family->name;
  stage.attempt([&] {
    state->config = read_config(directory, any_names);
    const Family& family = chosen_family(state->config, options.family);
    require_widths(family, state->config);
    state->family = &family;
  });
  std::array<std::uint64_t, 2> block = {128, 128};
  stage.attempt([&] {
    state->dialect = &dialect_of(state->config, list_file_names(directory));
    block = fp8_block_size(state->config);
    state->description = read_description(directory, *state->dialect);
  });
  stage.settle();

  WeightsListing listing =
      list_weights(directory, options.consumed_headers, any_names, stage.faults());
  state->side_files = list_side_files(directory, stage.faults());
  state->has_index = listing.has_index;
  stage.settle();

  std::vector<WeightsFile> located = locate(listing.files, directory, options.consumed_headers);
  state->stored = read_headers(located, options.threads, stage.faults());
  const bool is_complete = listing.is_complete && stage.faults().empty();
  for (const WeightsFile& file : located) state->files.push_back(file.facts);
  state->contents.emplace(std::move(located));
  const StoredNames names(state->stored);
  check_duplicates(state->stored, names, state->files, stage.faults());
  if (listing.has_index)
    check_index(listing.index, state->stored, names, state->files, stage.faults());
  listing = {};
  if (state->stored.empty() && is_complete) {
    stage.faults().add(
        Error(ErrorCode::kMissingTensor, "holds no tensors").in_file(directory.string()));
  }
  stage.settle();

  const bool names_are_known = !state->family->rules.empty();
  const std::string method =
      state->config.quantization ? state->config.quantization->quant_method : std::string();
  state->tensors = recognise_encodings({.stored = state->stored,
                                        .names = names,
                                        .files = state->files,
                                        .block = block,
                                        .quant_method = method,
                                        .names_are_known = names_are_known,
                                        .is_complete = is_complete},
                                       stage.faults());
  stage.settle();

  const FamilyMatch match{.family = *state->family,
                          .config = state->config,
                          .stored = state->stored,
                          .files = state->files,
                          .allow_unknown = options.allow_unknown};
  match_family(match, state->tensors, stage.faults());
  stage.settle();
  state->lacks_promised_mtp = names_are_known && state->config.num_nextn_predict_layers > 0 &&
                              !has_mtp_tensor(state->tensors, state->config);
  return Checkpoint(std::move(state));
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const ModelConfig& Checkpoint::config() const {
  return state_->config;
}
const Family& Checkpoint::family() const {
  return *state_->family;
}
std::span<const LogicalTensor> Checkpoint::tensors() const {
  return state_->tensors;
}
std::span<const StoredTensor> Checkpoint::stored() const {
  return state_->stored;
}
std::span<const SourceFile> Checkpoint::files() const {
  return state_->files;
}
const std::filesystem::path& Checkpoint::directory() const {
  return state_->directory;
}
const Dialect& Checkpoint::dialect() const {
  return *state_->dialect;
}
const Json& Checkpoint::description() const {
  return state_->description;
}
const std::vector<SideFile>& Checkpoint::side_files() const {
  return state_->side_files;
}
bool Checkpoint::has_index() const {
  return state_->has_index;
}
bool Checkpoint::lacks_promised_mtp() const {
  return state_->lacks_promised_mtp;
}

void Checkpoint::read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const {
  const StoredTensor& tensor = state_->stored.at(stored);
  INGOT_CHECK(offset <= tensor.n_bytes && out.size() <= tensor.n_bytes - offset);
  read_file(tensor.file, tensor.offset + offset, out);
}

std::vector<std::byte> Checkpoint::header_bytes(std::uint32_t file) const {
  return read_weights_header((*state_->contents)[file]).bytes;
}

bool Checkpoint::has_data(std::uint32_t file) const {
  return (*state_->contents)[file].saved_header.empty();
}

void Checkpoint::read_file(std::uint32_t file, std::uint64_t offset,
                           std::span<std::byte> out) const {
  state_->contents->read(file, offset, out);
}

void Checkpoint::close_file(std::uint32_t file) const {
  state_->contents->close(file);
}

}  // namespace ingot::formats
