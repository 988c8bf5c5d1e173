#include "formats/edited_tensors.h"

#include <algorithm>
#include <map>
#include <span>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/json/json.h"
#include "formats/overlay.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kRight = ".lora_A.weight", kLeft = ".lora_B.weight";
constexpr std::uint64_t kHashStep = std::uint64_t{1} << 20;

/// Hash of the names and bytes of all files.
Hash128 hash_of_files(const Checkpoint& tensors) {
  TensorHasher hasher;
  std::vector<std::byte> bytes;
  const auto files = tensors.files();
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    hasher.update(std::as_bytes(std::span(files[file].name)));
    for (std::uint64_t at = 0; at < files[file].n_bytes; at += kHashStep) {
      StopScope::check();
      bytes.resize(std::min(kHashStep, files[file].n_bytes - at));
      tensors.read_file(file, at, bytes);
      hasher.update(bytes);
    }
  }
  return hasher.finish();
}

StoredMatrix matrix_of(const std::shared_ptr<const PlainNumbers>& numbers, std::uint32_t stored) {
  const Shape& shape = numbers->tensor(stored).shape;
  return {.of = numbers, .stored = stored, .row_step = shape.empty() ? 1 : shape.back()};
}

}  // namespace

EditedTensors::EditedTensors(const std::filesystem::path& directory, std::size_t threads) {
  const auto tensors = std::make_shared<const Checkpoint>(open_loose_tensors(directory, threads));
  ErrorList faults;
  const auto stored = tensors->stored();
  for (std::uint32_t i = 0; i < stored.size(); ++i) {
    const std::string_view name = stored[i].name;
    if (!is_plain_number(stored[i].dtype)) {
      faults.add(fault_of(tensors->files(), stored[i], ErrorCode::kDtypeMismatch,
                          "is {}: edits are values in BF16, F16 or F32, which are encoded as the "
                          "base has the tensor",
                          dtype_name(stored[i].dtype)));
      continue;
    }
    const auto target = [&](std::string_view ending) -> Edit& {
      return edits_[fmt::format("{}.weight", name.substr(0, name.size() - ending.size()))];
    };
    if (name.ends_with(kRight)) {
      target(kRight).right = i;
    } else if (name.ends_with(kLeft)) {
      target(kLeft).left = i;
    } else {
      edits_[std::string(name)].values = i;
    }
  }
  for (const auto& [name, edit] : edits_) {
    if (edit.left.has_value() == edit.right.has_value()) continue;
    const std::uint32_t half = edit.left ? *edit.left : *edit.right;
    faults.add(fault_of(tensors->files(), stored[half], ErrorCode::kMissingTensor,
                        "is half of a low-rank pair: '{}' is not here",
                        edit.left ? kRight.substr(1) : kLeft.substr(1)));
  }
  faults.throw_if_any();
  hash_ = hash_of_files(*tensors);
  const CheckpointFiles* files = tensors->bytes().on_disk();
  INGOT_CHECK(files != nullptr);
  for (std::uint32_t file = 0; file < tensors->files().size(); ++file) {
    if (const auto& stamp = files->stamp(file)) stamps_.emplace_back(files->path(file), *stamp);
  }
  numbers_ = std::make_shared<const PlainNumbers>(tensors);
}

void EditedTensors::add_changes(const Checkpoint& model, ValueChanges& changes, ErrorList& faults,
                                std::vector<std::string>& remarks) const {
  std::map<std::string_view, std::uint32_t> places;
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i)
    places.emplace(model.tensors()[i].name, i);
  const auto fault = [&](std::uint32_t stored, ErrorCode code, const std::string& fact) {
    faults.add(fault_of(numbers_->source().files(), numbers_->tensor(stored), code, "{}", fact));
  };
  std::size_t n_values = 0, n_pairs = 0;
  for (const auto& [name, edit] : edits_) {
    const std::uint32_t first = edit.values ? *edit.values : *edit.left;
    const auto found = places.find(name);
    if (found == places.end()) {
      fault(first, ErrorCode::kMissingTensor,
            fmt::format("edits '{}', which the model does not have", name));
      continue;
    }
    const LogicalTensor& tensor = model.tensors()[found->second];
    std::vector<ValueChange> own;
    if (edit.values) {
      if (const Shape& shape = numbers_->tensor(*edit.values).shape; shape != tensor.shape) {
        fault(*edit.values, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, the model's has {}", shape_text(shape),
                          shape_text(tensor.shape)));
        continue;
      }
      own = replacement(tensor, found->second, matrix_of(numbers_, *edit.values));
      ++n_values;
    }
    if (edit.left) {
      const Shape &left = numbers_->tensor(*edit.left).shape,
                  &right = numbers_->tensor(*edit.right).shape;
      const bool fits = tensor.shape.size() == 2 && left.size() == 2 && right.size() == 2 &&
                        left[1] == right[0] && left[1] > 0 && left[0] == tensor.shape[0] &&
                        right[1] == tensor.shape[1];
      if (!fits) {
        fault(*edit.left, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, and lora_A {}: a pair [rows, rank] and [rank, cols] "
                          "changes a matrix, and '{}' has shape {}",
                          shape_text(left), shape_text(right), name, shape_text(tensor.shape)));
        continue;
      }
      if (own.empty())
        own.push_back({.tensor = found->second,
                       .rows = {.n = tensor.shape[0]},
                       .cols = {.n = tensor.shape[1]}});
      own.front().low_rank = LowRankPair{.left = matrix_of(numbers_, *edit.left),
                                         .right = matrix_of(numbers_, *edit.right),
                                         .rank = left[1]};
      ++n_pairs;
    }
    auto& all = changes[found->second];
    all.insert(all.end(), own.begin(), own.end());
  }
  remarks.push_back(
      fmt::format("edits: values of {} tensor(s), low-rank pairs of {}; each is "
                  "encoded in the scheme that it has",
                  n_values, n_pairs));
}

Json EditedTensors::record() const {
  return {{"hash", hash_.hex()}, {"tensors", edits_.size()}};
}

}  // namespace ingot::formats
