#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "formats/family/cache_scales.h"

// Views of a model with its scales of a cache of keys and values under other names, or with new
// scales. Scales of a view are F32 of shape [1], one for keys and one for values.

namespace ingot::formats {

struct Manifest;

/// The model with its scales under other names. One number per head becomes the largest, which
/// serves all heads; one scale for keys and values becomes two. Offsets are left out. Reading
/// throws kBadScale for a scale that is not finite or not above zero.
Checkpoint with_spelled_caches(std::shared_ptr<const Checkpoint> source, const CacheNames& names);

/// Scales of keys and values.
struct CachePair {
  float keys = 1, values = 1;
};
/// The model with these scales, by attention module, in place of all that it has. Modules must be
/// of cached_modules(). `remark`: a further remark of the view, or empty.
Checkpoint with_made_caches(std::shared_ptr<const Checkpoint> source, const CacheNames& names,
                            const std::map<std::string, CachePair>& pairs, std::string remark = {});

/// How an output has the scales of its cache.
struct CachesHeld {
  std::set<std::string> names;  ///< stored names
  bool are_made = false;        ///< true: new ones of `--kv-scales`
};
/// Returns true if the output's manifest says that `--kv-scales` made its scales.
bool makes_caches(const Manifest& output);
/// Makes a view of the source with the scales of the cache that an output of it has: under other
/// names, or none where `--kv-scales` made the output's.
Checkpoint with_caches_as_in(Checkpoint source, const CachesHeld& held);
/// CachesHeld::names of an output.
std::set<std::string> cache_names_of(const TensorSource& output);

}  // namespace ingot::formats
