#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/family/family.h"

// The weights that loaders fuse into one module: they have one name here. All code that needs this
// asks it here; engines' own names of such modules are in engines/modules/.

namespace ingot::formats {

/// How far a module of routed experts reaches.
enum class ExpertJoin : std::uint8_t {
  kExpert,  ///< gate and up of each expert: they share a global scale
  kMatrix,  ///< gate and up of all experts of a layer, and their down: each is one weight
  kLayer,   ///< all experts of a layer: they have one scheme
};

/// A name for the module that loaders make of a weight and others. Empty for a weight that stays by
/// itself (without a rule too), and for biases, which are added. The indexer's `wk` is joined after
/// it was decoded, so it shares nothing.
std::string joined_module(std::string_view weight, const TensorRule* rule, ExpertJoin experts);

}  // namespace ingot::formats
