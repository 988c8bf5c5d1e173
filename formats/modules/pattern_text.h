#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/modules/module_census.h"

namespace ingot::formats {

/// What a pattern takes in behind a layer's number.
enum class Reach : std::uint8_t {
  kLeaf,    ///< what ends with the path
  kParent,  ///< where a component starts like the path
  kLayer,   ///< everything
};

/// What a pattern is about, in whichever layers.
struct Selector {
  Reach reach{};
  std::string path;  ///< of the tail, `#` for the number of an expert; empty for kLayer
};

/// A selector with the layers that it is to match in.
struct LayeredSelector {
  const Selector* selector = nullptr;
  bool is_everywhere = false;       ///< in all layers, whose numbers need not be said
  std::vector<std::size_t> layers;  ///< positions in the census; of kGlob one, unless everywhere
};

/// The layers of a model.
struct PatternPlaces {
  const ModuleCensus& census;
  std::uint64_t n_main_layers = 0;  ///< 0: not known
  /// Engines insert a component behind the number of an MTP layer.
  [[nodiscard]] bool is_mtp(std::size_t layer) const {
    return n_main_layers != 0 && census.layers()[layer] >= n_main_layers;
  }
};

std::string pattern_text(const LayeredSelector& pattern, const PatternPlaces& places,
                         PatternSyntax syntax);

}  // namespace ingot::formats
