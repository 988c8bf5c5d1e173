#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/hash.h"
#include "formats/changes/value_change.h"

namespace ingot::formats {

/// Edited values of a few tensors of a model, in the safetensors files of a directory: BF16, F16 or
/// F32 of the shape of the weight, under its name, which take the place of its values; or
/// `MODULE.lora_A.weight` [rank, cols] and `MODULE.lora_B.weight` [rows, rank], whose product B A
/// is added to `MODULE.weight`, to the new values where there are such.
class EditedTensors final : public ValueEditor {
 public:
  /// Throws, collected, for a dtype that is no plain number (kDtypeMismatch), half of a pair
  /// (kMissingTensor), and as open_loose_tensors() does.
  EditedTensors(const std::filesystem::path& directory, std::size_t threads);

  [[nodiscard]] std::string_view kind() const override { return "edits"; }
  /// Faults: a tensor that the model does not have (kMissingTensor), or has in another shape
  /// (kShapeMismatch).
  void add_changes(const Checkpoint& model, ValueChanges& changes, ErrorList& faults,
                   std::vector<std::string>& remarks) const override;
  [[nodiscard]] Json record() const override;
  [[nodiscard]] std::vector<std::pair<std::filesystem::path, FileStamp>> files() const override {
    return stamps_;
  }

 private:
  /// The stored tensors that change one of the model's.
  struct Edit {
    std::optional<std::uint32_t> values, left, right;
  };

  std::shared_ptr<const PlainNumbers> numbers_;
  std::map<std::string, Edit> edits_;  // by the name in the model
  Hash128 hash_;
  std::vector<std::pair<std::filesystem::path, FileStamp>> stamps_;
};

}  // namespace ingot::formats
