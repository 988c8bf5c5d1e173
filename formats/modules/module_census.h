#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/modules/module_patterns.h"

namespace ingot::formats {

/// A name behind its layer: `model.layers.` 61 `mlp.experts.#.up_proj`, where `#` stands for the
/// number of an expert.
struct LayeredName {
  std::string_view prefix;
  std::uint32_t layer = 0;
  std::string tail;
};
std::optional<LayeredName> split_layer(std::string_view name);

/// Modules as a table of layers and tails, which is small however many experts there are.
class ModuleCensus {
 public:
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};
  static constexpr std::uint32_t kMixed = kAbsent - 1;  ///< experts of several classes

  explicit ModuleCensus(std::span<const ClassedModule> modules);

  [[nodiscard]] const std::string& prefix() const { return prefix_; }  ///< `model.layers.`
  [[nodiscard]] std::span<const std::uint32_t> layers() const { return layers_; }  ///< sorted
  [[nodiscard]] std::span<const std::string> tails() const { return tails_; }      ///< sorted
  /// The class of a tail's modules in a layer, kAbsent or kMixed; by position in layers and tails.
  [[nodiscard]] std::uint32_t cell(std::size_t layer, std::size_t tail) const {
    return cells_[layer * tails_.size() + tail];
  }
  /// layer * tails().size() + tail of a module, nothing when it is not in the table.
  [[nodiscard]] std::optional<std::size_t> cell_of(std::string_view module) const;
  /// Modules that no cell stands for: outside the layers, or in a mixed cell.
  [[nodiscard]] std::span<const ClassedModule> outside() const { return outside_; }

 private:
  std::string prefix_;
  std::vector<std::uint32_t> layers_;
  std::vector<std::string> tails_;
  std::vector<std::uint32_t> cells_;
  std::vector<ClassedModule> outside_;
};

}  // namespace ingot::formats
