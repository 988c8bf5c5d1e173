#pragma once

#include <string_view>

#include "verify/gates/gate.h"

namespace ingot::verify {

/// A finite number and nothing else. kInvalidArgument, naming `what`.
double parse_number(std::string_view text, std::string_view what);

/// A gate from its words: `limit` is a number, on the metric's good side, or has ">=" or "<="
/// before it, which must be that side. kInvalidArgument for an unknown metric or group, or a limit
/// that is not understood; the key is named, the origin is not.
Gate make_demand(std::string_view metric, std::string_view group, std::string_view limit,
                 std::string_view origin);

}  // namespace ingot::verify
