#include "formats/overlay.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/composed_bytes.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/dialect.h"
#include "formats/family/cache_scales.h"
#include "formats/storage/stored_names.h"
#include "formats/text/list_text.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kNamedTensors = 3;

bool is_inside(std::string_view name, std::string_view module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

/// Where tensors that the model lacks are in the output: next to those of their module, or of the
/// module above it.
class ModuleHomes {
 public:
  explicit ModuleHomes(const Checkpoint& model) : model_(model) {
    const auto stored = model.stored();
    for (std::uint32_t i = 0; i < stored.size(); ++i)
      homes_.emplace(module_stem(stored[i].name), i);
  }
  [[nodiscard]] std::string of(std::string_view name) const {
    for (std::string_view module = module_stem(name); module != name;
         name = module, module = module_stem(module)) {
      const auto found = homes_.lower_bound(module);
      if (found != homes_.end() && is_inside(found->first, module))
        return home_in(model_, found->second);
    }
    return homes_.empty() ? std::string() : home_in(model_, 0);
  }

 private:
  const Checkpoint& model_;
  std::map<std::string_view, std::uint32_t> homes_;
};

void require_stored_form(const Checkpoint& model) {
  const bool is_seen = std::ranges::any_of(model.tensors(), [](const LogicalTensor& tensor) {
    return is_seen_only(tensor.encoding) || !tensor.encoding.rows_of_scales.empty();
  });
  if (!is_seen) return;
  throw Error(ErrorCode::kUnsupported,
              "holds weights in a form that is only read, and an overlay goes over stored tensors "
              "(convert it first, and put the overlay over the result)")
      .in_directory(model.directory().string());
}

/// Tensors of the overlay that neither the model nor its family has.
void require_known(const Checkpoint& overlaid, const Checkpoint& model, const Giver& overlay) {
  const StoredNames own(model.stored()), given(overlay.model->stored());
  std::vector<std::string> unknown;
  for (const LogicalTensor& tensor : overlaid.tensors()) {
    const bool is_placed = tensor.rule != nullptr && !tensor.is_unknown;
    const std::string& stored = overlaid.stored()[tensor.encoding.stored.weight()].name;
    if (!is_placed && given.find(stored) && !own.find(stored)) unknown.push_back(stored);
  }
  if (unknown.empty()) return;
  throw Error(ErrorCode::kUnknownTensor,
              "overlay '{}' has {} tensor(s) that this model does not have: {} (an overlay has the "
              "names of the base's stored tensors, or of parts of its weights)",
              overlay.name, unknown.size(), list_text(unknown, kNamedTensors))
      .in_directory(overlay.model->directory().string());
}

}  // namespace

Checkpoint open_loose_tensors(const std::filesystem::path& directory, std::size_t threads) {
  Draft draft;
  draft.directory = directory;
  std::vector<std::string> names;
  for (std::string& name : list_file_names(directory)) {
    if (std::filesystem::path(name).extension() == kWeightsSuffix) names.push_back(std::move(name));
  }
  ErrorList faults;
  draft.side_files = list_side_files(directory, faults).files;
  std::vector<WeightsFile> files = locate_files(names, directory, {});
  draft.stored = read_headers(files, threads, faults);
  faults.throw_if_any();
  if (draft.stored.empty()) {
    throw Error(ErrorCode::kMissingTensor, "holds no tensors (*.safetensors)")
        .in_directory(directory.string());
  }
  draft.bytes = std::make_unique<CheckpointFiles>(std::move(files));
  std::map<std::string_view, const StoredTensor*> seen;
  for (std::uint32_t i = 0; i < draft.stored.size(); ++i) {
    const StoredTensor& stored = draft.stored[i];
    if (const auto [first, is_new] = seen.emplace(stored.name, &stored); !is_new)
      draft.fault(stored, ErrorCode::kDuplicate, "is in {} too",
                  draft.bytes->files()[first->second->file].name);
    LogicalTensor& tensor = draft.tensors.emplace_back();
    tensor.name = stored.name;
    tensor.shape = stored.shape;
    tensor.encoding.scheme = plain_scheme(stored.dtype);
    tensor.encoding.stored = StoredParts(i);
  }
  draft.faults.throw_if_any();
  draft.dialect = dialects().front();
  return Checkpoint::view(std::move(draft));
}

Checkpoint with_overlay(std::shared_ptr<const Checkpoint> model, Giver overlay,
                        std::size_t threads) {
  require_stored_form(*model);
  const StoredNames given(overlay.model->stored());
  const ModuleHomes homes(*model);
  Draft draft = model->draft_of_view();
  draft.remarks.clear();
  auto bytes =
      std::make_unique<ComposedBytes>(std::vector<Giver>{{.name = "", .model = model}, overlay});
  const auto own = model->stored(), theirs = overlay.model->stored();
  const auto add = [&](std::uint32_t giver, std::uint32_t index, const std::string& home) {
    StoredTensor stored = (giver == 0 ? own : theirs)[index];
    stored.file += bytes->first_file(giver);
    bytes->add(giver, index, home);
    draft.stored.push_back(std::move(stored));
  };
  ErrorList faults;
  for (std::uint32_t i = 0; i < own.size(); ++i) {
    const auto found = given.find(own[i].name);
    if (found && theirs[*found].shape != own[i].shape) {
      faults.add(fault_of(overlay.model->files(), theirs[*found], ErrorCode::kShapeMismatch,
                          "has shape {}, the base's has {} (values for a quantized weight go into "
                          "`edits`)",
                          shape_text(theirs[*found].shape), shape_text(own[i].shape))
                     .in_directory(overlay.model->directory().string()));
    }
    add(found ? 1 : 0, found.value_or(i), home_in(*model, i));
  }
  const StoredNames known(own);
  for (std::uint32_t i = 0; i < theirs.size(); ++i) {
    if (!known.find(theirs[i].name)) add(1, i, homes.of(theirs[i].name));
  }
  faults.throw_if_any();
  draft.bytes = std::move(bytes);
  // The base's own were judged when it was opened.
  static const std::vector<Pattern> kAny = {Pattern("*")};
  Checkpoint overlaid = Checkpoint::assemble(
      std::move(draft),
      {.family = std::string(model->family().spec), .allow_unknown = &kAny, .threads = threads});
  require_known(overlaid, *model, overlay);
  return overlaid;
}

}  // namespace ingot::formats
