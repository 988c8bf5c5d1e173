#include "formats/checkpoint/single_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/weights_headers.h"
#include "formats/container/safetensors.h"
#include "formats/family/families.h"
#include "formats/recognition/encoding_recognition.h"
#include "formats/relaid/input_major_parts.h"
#include "formats/storage/stored_names.h"

namespace ingot::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAnyFamily = "generic";

// Tells for each stored tensor if it is a part of a weight whose other parts are elsewhere. Such a
// part is a fault in a whole checkpoint, and no fault in one file of it.
std::vector<bool> parts_of_others(const RecognitionInput& file) {
  if (const auto layout = input_major_layout(file.config))
    return parts_of_torn_weights(*layout, file.stored);
  ErrorList of_whole, of_part;
  recognise_encodings(file, of_whole);
  RecognitionInput part = file;
  part.is_complete = false;
  std::vector<StoredParts> refused;
  recognise_encodings(part, of_part, &refused);
  std::set<std::string_view> told, alone;
  for (const Error& fault : of_part.errors()) told.insert(fault.tensor());
  for (const Error& fault : of_whole.errors()) {
    if (fault.code() == ErrorCode::kMissingTensor && !told.contains(fault.tensor()))
      alone.insert(fault.tensor());
  }
  std::vector<bool> found;
  for (const StoredTensor& tensor : file.stored) found.push_back(alone.contains(tensor.name));
  for (const StoredParts& parts : refused) {
    if (!found[parts.weight()]) continue;
    parts.for_each([&](Part, std::uint32_t index) { found[index] = true; });
  }
  return found;
}

// Takes the parts of others out, with a remark.
void leave_out_parts_of_others(const RecognitionInput& file, std::vector<StoredTensor>& stored,
                               std::vector<std::string>& remarks) {
  constexpr std::size_t kShown = 3;
  const std::vector<bool> is_left_out = parts_of_others(file);
  std::vector<StoredTensor> kept;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_left_out[i]) {
      names.push_back(stored[i].name);
    } else {
      kept.push_back(std::move(stored[i]));
    }
  }
  stored = std::move(kept);
  if (names.empty()) return;
  const std::size_t n = names.size();
  names.resize(std::min(n, kShown));
  remarks.push_back(
      fmt::format("left out: {} tensor{} whose codes or scales are in another file: "
                  "{}{}",
                  n, n == 1 ? "" : "s", fmt::join(names, ", "), n > kShown ? ", ..." : ""));
}

}  // namespace

bool is_weights_file(const fs::path& path) {
  std::error_code failure;
  return path.extension() == kWeightsSuffix && fs::is_regular_file(path, failure);
}

Checkpoint open_weights_file(const fs::path& path, const fs::path& config, OpenOptions options) {
  AssembledModel model;
  model.directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
  // For loader rules the file is a checkpoint in one file, whatever its name.
  model.file_names = {"model.safetensors"};
  if (!config.empty()) {
    model.file_names->emplace_back(kConfigName);
    model.config_text = read_text_file(config, kMaxConfigBytes);
    model.config = parse_model_config(model.config_text, config.string());
  } else if (options.family.empty()) {
    options.family = kAnyFamily;
  }
  const bool is_generic =
      options.family == kAnyFamily ||
      (options.unknown_as_generic && options.family.empty() && family_of(model.config) == nullptr);
  ErrorList faults;
  std::vector<WeightsFile> files = locate_files({path.filename().string()}, model.directory, {});
  model.stored = read_headers(files, options.threads, faults);
  if (model.stored.empty() && faults.empty())
    faults.add(Error(ErrorCode::kMissingTensor, "holds no tensors").in_file(path.string()));
  if (options.faults == nullptr) faults.throw_if_any();
  for (const Error& fault : faults.errors()) options.faults->add(fault);
  model.bytes = std::make_unique<CheckpointFiles>(std::move(files));
  const std::vector<StoredTensor> stored = model.stored;
  const StoredNames names(stored);
  leave_out_parts_of_others({.stored = stored,
                             .names = names,
                             .files = model.bytes->files(),
                             .block = fp8_block_size(model.config),
                             .config = model.config,
                             .names_are_known = !is_generic},
                            model.stored, model.remarks);
  return Checkpoint::assemble(std::move(model), options);
}

}  // namespace ingot::formats
