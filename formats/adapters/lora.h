#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/adapters/adapter_file.h"
#include "formats/adapters/reshaped_model.h"
#include "formats/changes/value_change.h"

namespace ingot::formats {

/// An adapter of PEFT as changes of a model's values: what `merge_and_unload()` would add and
/// replace, in FP64. Modules are found by the model's names and by those of transformers in memory,
/// routed experts by layer, number and projection, whichever form either side has them in.
/// Source: PEFT 0.21, tuners/lora; docs/lora.md.
class LoraAdapter final : public ValueEditor {
 public:
  /// Throws as AdapterFile::open() does.
  LoraAdapter(const std::filesystem::path& directory, LoraOptions options)
      : LoraAdapter(AdapterFile::open(directory), std::move(options)) {}
  LoraAdapter(AdapterFile file, LoraOptions options)
      : file_(std::move(file)), options_(std::move(options)) {}

  [[nodiscard]] std::string_view kind() const override { return "lora"; }
  /// Rows for the tokens of the adapter, and a head of its own where it changes one that is the
  /// embedding (with_shape_of()).
  [[nodiscard]] std::optional<Checkpoint> reshaped(
      const std::shared_ptr<const Checkpoint>& model) const override {
    return with_shape_of(file_, model);
  }
  /// Faults: modules and tensors that the model does not have (kMissingTensor), other shapes and
  /// ranks (kShapeMismatch), a residual base, and DoRA of an embedding (kUnsupported).
  void add_changes(const Checkpoint& model, ValueChanges& changes, ErrorList& faults,
                   std::vector<std::string>& remarks) const override;
  [[nodiscard]] Json record() const override;
  [[nodiscard]] std::vector<std::pair<std::filesystem::path, FileStamp>> files() const override {
    return file_.stamps();
  }

 private:
  AdapterFile file_;
  LoraOptions options_;
};

}  // namespace ingot::formats
