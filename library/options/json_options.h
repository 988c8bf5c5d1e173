#pragma once

#include <string_view>

#include "library/options/flag_table.h"

namespace ingot {

/// Sets flags by a JSON object whose keys are their names without the dashes, and notes which are
/// given; an empty text sets none. A text flag takes a text or a number, one that may be repeated a
/// list of these, or one; null and, of a flag without a value, false mean that it is not given. The
/// rules of the table hold as they do for words. Throws kInvalidArgument.
void read_json_options(std::string_view json, FlagTable& table);

}  // namespace ingot
