#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/model/step/step.h"

namespace ingot::verify {

/// A linear of a model whose input is measured; one per expert of a stack.
struct CalibratedModule {
  std::string name;        ///< `model.layers.3.mlp.experts.17.gate_proj`
  std::string weight;      ///< canonical name of its weight
  std::size_t matrix = 0;  ///< within a stack
  std::size_t width = 0;   ///< K
  formats::Role role{};
  std::optional<std::uint32_t> layer;   ///< nothing: the head
  std::optional<std::uint32_t> expert;  ///< of routed ones
};

/// Every linear that the forward pass applies, in the order of the source's tensors: projections
/// of attention and indexer, dense, shared and routed experts, those of the MTP layer, the heads.
/// Not the embedding, nor router and weights_proj, which no engine quantizes.
std::vector<CalibratedModule> calibrated_modules(const formats::Checkpoint& source,
                                                 const inference::ModelSpec& spec);

}  // namespace ingot::verify
