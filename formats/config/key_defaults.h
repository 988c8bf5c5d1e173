#pragma once

#include "formats/config/model_config.h"
#include "formats/json/json_fwd.h"
#include "formats/yaml/yaml.h"

// The meaning of absent keys of config.json, as a family's file says it (`defaults`).

namespace ingot::formats {

/// The defaults of `base`, an object or null, with those of the map in their place, in whatever
/// spelling; null takes one back. Texts are numbers, true and false where they are written so. `as
/// KEY` is the value of another key, `each WORDS` a list of these words in turn, an entry per
/// layer. Throws kInvalidArgument, naming the line, for more than 256 keys.
Json read_defaults(const Yaml& defaults, const Json& base);

/// Adds those that `keys` has in no spelling; null is said. An object is added whole where `keys`
/// has none there, or an empty one; parameters of rope are also those of rope_scaling. Dots in a
/// key lead into objects, which are made where they are absent or null. False where it adds
/// nothing.
bool add_defaults(const Json& defaults, Json& keys);

/// The config whose text model has these values under absent keys.
ModelConfig with_defaults(const ModelConfig& config, const Json& defaults);

}  // namespace ingot::formats
