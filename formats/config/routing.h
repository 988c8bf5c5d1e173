#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "formats/config/model_config.h"

namespace ingot::formats {

/// How many experts a token of a mixture gets: `topk` of `experts`, from the best `topk_groups` of
/// `groups` groups of equal size.
struct Routing {
  std::size_t experts = 0, topk = 0, groups = 1, topk_groups = 1;
};

/// The number of routed experts in a layer; the largest of all layers without one, or for an MTP
/// layer that the config's list lacks.
std::uint64_t experts_of(const ModelConfig& config, std::optional<std::uint32_t> layer);
/// True if layers have different numbers of them.
bool has_uneven_experts(const ModelConfig& config);

/// Reads the routing of a layer, or that of the layer with the most experts, from config.json. Throws kCorrupt, with file and keys, for numbers by which no
/// token gets its experts: more than there are, or than the groups that are kept have; groups that
/// do not divide the experts; groups of one expert where a group is judged by its two best
/// (noaux_tc).
Routing read_routing(const ModelConfig& config, std::optional<std::uint32_t> layer = std::nullopt);

}  // namespace ingot::formats
