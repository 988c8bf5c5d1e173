#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ingot::formats {

/// JSON with keys in the order of the file; complete in formats/json/json.h. Headers include this one: the
/// library's own takes seconds to read.
using Json = nlohmann::ordered_json;

}  // namespace ingot::formats
