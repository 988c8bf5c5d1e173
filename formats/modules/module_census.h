#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Names of modules taken apart at their layers, and a model's modules as a table of these.

namespace ingot::formats {

/// A module that engines build as a linear layer, under the name that quantization configs use (the
/// weight's without `.weight`), and the class that a config must tell it to be in.
struct ClassedModule {
  std::string name;
  std::uint32_t cls = 0;
};

/// A name after its layer: `model.layers.` 61 `mlp.experts.#.up_proj`, where `#` replaces the
/// number of an expert.
struct LayeredName {
  std::string_view prefix;
  std::uint32_t layer = 0;
  std::string tail;
};

/// Nullopt for a name without a component `layers` and a number behind it.
std::optional<LayeredName> split_layer(std::string_view name);

template <typename T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

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
  /// layer * tails().size() + tail of a module, nullopt when it is not in the table.
  [[nodiscard]] std::optional<std::size_t> cell_of(std::string_view module) const {
    const auto split = split_layer(module);
    return split ? cell_of(*split) : std::nullopt;
  }
  /// Modules that no cell represents: outside the layers, or in a mixed cell.
  [[nodiscard]] std::span<const ClassedModule> outside() const { return outside_; }

 private:
  [[nodiscard]] std::optional<std::size_t> cell_of(const LayeredName& name) const;

  std::string prefix_;
  std::vector<std::uint32_t> layers_;
  std::vector<std::string> tails_;
  std::vector<std::uint32_t> cells_;
  std::vector<ClassedModule> outside_;
};

}  // namespace ingot::formats
