#pragma once

#include <string_view>

#include "formats/json/json_fwd.h"
#include "library/options/flag_table.h"

namespace ingot {

/// The key of a flag in settings: its name without dashes.
std::string_view key_of(const Flag& flag);

/// Reads the settings of a JSON object, or of an empty text, which has none. The object may be a
/// recipe, whose `rules` and `allow` mean the flags --rule and --allow. Throws kInvalidArgument.
formats::Json settings_of_json(std::string_view json);

/// Sets the variables of the table, and notes what is given: the one way from a value to a
/// variable. A text takes a text or a number, a flag that may be repeated a list of these, or one;
/// null and, of a flag without a value, false mean that it is not given. Throws kInvalidArgument
/// for keys, types, choices and ranges, flags that need or exclude others, that would change
/// nothing, that read the standard input twice or write one file; kNotFound for the name of a model
/// that the hub's cache lacks.
void take_settings(const formats::Json& settings, FlagTable& table);

}  // namespace ingot
