#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "formats/container/tensor.h"
#include "formats/family/family.h"

namespace ingot::formats {

/// Layers whose experts and router agree on another number than config.json has for all layers, and
/// that number: of a model whose experts were pruned in some of its layers.
std::map<std::uint32_t, std::uint64_t> uneven_experts(const Family& family,
                                                      const ModelConfig& config,
                                                      std::span<const StoredTensor> stored);

/// What is wrong with such a layer, and the remedy if it is an MTP layer.
std::string uneven_text(std::uint32_t layer, std::uint64_t n_experts, const ModelConfig& config);

}  // namespace ingot::formats
