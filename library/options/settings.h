#pragma once

#include <filesystem>
#include <string_view>

#include "formats/json/json_fwd.h"
#include "library/options/flag_table.h"

namespace ingot {

/// Reads the settings of a JSON object, or of an empty text, which has none. The object may be a
/// recipe, whose `rules` and `allow` mean the flags --rule and --allow. Throws kInvalidArgument.
formats::Json settings_of_json(std::string_view json);

// Settings are what a user says of one run: a JSON object, from names of options without dashes,
// and of words at their place, to values. Words, JSON and recipes become them, records keep them.

/// Sets the variables of the table, and FlagTable::settings: the one way from a value to a
/// variable. A text takes a text or a number, a flag that may be repeated a list of these, or one;
/// null and, of a flag without a value, false mean that it is not given. Throws kInvalidArgument
/// for keys, types, choices and ranges, flags that need or exclude others, that would change
/// nothing, that read the standard input twice or write one file; kNotFound for the name of a model
/// that the hub's cache lacks.
void take_settings(const formats::Json& settings, FlagTable& table);

/// The settings that a table took, for a run in another folder: with absolute paths, in place of
/// names in the hub's cache too.
formats::Json absolute_settings(const FlagTable& table);

/// The snapshot of a model in the hub's cache, where nothing is at `path` and `given`, the text of
/// a recipe that means it, is the name of a model that the cache has; else `path`. Throws kNotFound
/// for a revision that the cache lacks.
std::filesystem::path path_or_snapshot(const std::filesystem::path& path, const std::string& given);

/// The folder in which programs of the hub keep what they fetched: HF_HUB_CACHE, else that of
/// HF_HOME, else of the home directory; empty where no variable tells.
std::filesystem::path hub_cache();

}  // namespace ingot
