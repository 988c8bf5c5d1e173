#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/dialect/config_groups.h"
#include "formats/dialect/modelopt.h"

namespace ingot::formats {

/// The treatment of activations for each weight of a source, by its files; kept weights keep it.
class SourceActivations {
 public:
  /// `description` is the dialect's file, or null; `config` and `description` must outlive this.
  /// Throws kCorrupt when the config's lists are none.
  SourceActivations(const ModelConfig& config, const Dialect& dialect, const Json& description);

  /// The block's activations for the module; where it has none, static if scales of activations are
  /// stored, else the dialect's default; FP4 that the dialect itself does not write is weight-only.
  /// `name` is the weight's.
  [[nodiscard]] Activations of(std::string_view name, const Encoding& encoding) const;
  /// True if the block's own word for the scheme leaves activations as they are (W4A16_NVFP4 of
  /// ModelOpt): a scale of the input that is stored all the same has no use.
  [[nodiscard]] bool leaves_inputs(std::string_view name, const Encoding& encoding) const;
  /// ConfigGroups::has_row_scales() of a weight; false where there are no such groups.
  [[nodiscard]] bool has_row_scales(std::string_view name) const {
    return groups_ && groups_->has_row_scales(module_name(name));
  }

  /// The activations of a weight in words, with the numbers that activations become ("dynamic in 8
  /// bits of type float"), alike in all dialects.
  [[nodiscard]] std::string text(std::string_view name, const Encoding& encoding) const;

 private:
  const ModelConfig* config_;
  const Dialect* dialect_;
  std::optional<ConfigGroups> groups_;
  std::optional<ModeloptBlock> modelopt_;
};

}  // namespace ingot::formats
