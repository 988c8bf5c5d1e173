#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"
#include "formats/family/family.h"
#include "formats/family/proposal/config_widths.h"

// Rows that families of the program have for the names of an unknown model.

namespace ingot::formats {

/// A row of a family for tensors of these names.
struct NeighbourRow {
  const Family* family = nullptr;
  const TensorRule* rule = nullptr;
  bool fits = false;  ///< true: the row says just the shapes that the tensors have
};

/// Tensors whose names differ in numbers only, as a row is asked for them.
struct NamedTensors {
  std::string_view pattern;
  const ShapesByLayer& layers;
  const Shape& first;  ///< the shape of one of them
};

class Neighbours {
 public:
  /// `config` must outlive this. `without` is a family that is not asked, or empty. Reads every
  /// table.
  Neighbours(const ModelConfig& config, std::string_view without);

  /// A row of each family that has one for names at this place of a layer, or outside of layers;
  /// of several in a family one that fits.
  [[nodiscard]] std::vector<NeighbourRow> rows_of(const NamedTensors& tensors) const;
  /// The traits of a row as a family's file says them, each with ", " before it, without its shape,
  /// the set that it is fused with, and the order of a stack. Returns nullopt when one of their
  /// widths is no expression over this config.
  [[nodiscard]] std::optional<std::string> traits_of(const NeighbourRow& row,
                                                     const ShapesByLayer& layers) const;
  /// The shape of a row that fits, as traits_of() says traits; empty where no expression says it.
  [[nodiscard]] std::string shape_of(const NeighbourRow& row, const ShapesByLayer& layers) const;
  /// The layers of a row, as traits_of() says traits, where they are just these; else empty.
  [[nodiscard]] std::string layers_of(const NeighbourRow& row, const ShapesByLayer& layers) const;

 private:
  struct Asked {
    const Family* family;
    ModelConfig config;  // with the defaults of the family
  };
  [[nodiscard]] const ModelConfig& config_of(const Family& family) const;
  [[nodiscard]] bool fits(const Asked& asked, const TensorRule& rule,
                          const NamedTensors& tensors) const;
  [[nodiscard]] std::optional<std::string> expression(const NeighbourRow& row, const Width& width,
                                                      const ShapesByLayer& layers) const;

  const ModelConfig& config_;
  std::vector<Asked> asked_;
  struct Place {
    std::size_t asked;
    const TensorRule* rule;
  };
  std::multimap<std::string_view, Place> places_;  // by the text behind a layer's number
};

/// True if ranks cut the tensors of both rows alike, both or none are quantized, and engines join
/// both or none of two gates of attention with queries.
bool are_alike(const TensorRule& a, const TensorRule& b);

}  // namespace ingot::formats
