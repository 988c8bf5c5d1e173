#pragma once

#include <cstddef>

#include "formats/config/model_config.h"

namespace ingot::formats {

/// How many experts a token of a mixture gets: `topk` of `experts`, from the best `topk_groups` of
/// `groups` groups of equal size.
struct Routing {
  std::size_t experts = 0, topk = 0, groups = 1, topk_groups = 1;
};

/// Reads the routing from config.json. Throws kCorrupt, with file and keys, for numbers by which no
/// token gets its experts: more than there are, or than the groups that are kept have; groups that
/// do not divide the experts; groups of one expert where a group is judged by its two best
/// (noaux_tc).
Routing read_routing(const ModelConfig& config);

}  // namespace ingot::formats
