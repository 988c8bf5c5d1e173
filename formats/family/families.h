#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/family/family.h"

// The families that there are: tables/NAME.yaml, in the program, and files of users.

namespace ingot::formats {

/// Facts about a family in the program that are known before its table is read.
struct FamilyEntry {
  std::string_view name;
  std::string_view summary;
  std::string_view model_types;  ///< values of model_type with ", " between them
  bool can_be_synthesized = false;
};
/// The values of config.json's model_type.
std::vector<std::string_view> model_types_of(const FamilyEntry& family);
/// Every family in the program, generic last.
std::span<const FamilyEntry> family_entries();

/// Every family in the program with its rows, generic last; reads every table: for tests and lists
/// of roles.
std::span<const Family* const> families();

/// Finds a family by name, or by `file:PATH`: the family of that file, which is read and kept. Null
/// for a name that no family has; throws as parse_family() does for the file.
const Family* find_family(std::string_view spec);
/// The family of a text, which is kept: its spec finds it in this run of the program.
const Family& add_family(std::string_view yaml, std::string_view where);
/// Finds a family by model_type, else by that of the text model; null: there is none.
const Family* family_of(const ModelConfig& config);

/// True if the file of a family in the program, or of one whose rows it takes, names `key`, a key
/// of config.json. True for other families.
bool names_key(const Family& family, std::string_view key);

/// The beginning of a spec that names a file.
inline constexpr std::string_view kFamilyFileMark = "file:";
/// The file of a family next to a checkpoint's weights; opening the checkpoint prefers it to those
/// of the program.
inline constexpr std::string_view kFamilyFileName = "ingot-family.yaml";
/// The spec of the family in this directory; empty where there is none.
std::string family_file_in(const std::filesystem::path& directory);
/// The family under which a directory is read when the user names none: the file in it, else the
/// family that its manifest names, where the program has that; empty: by its config.
std::string family_spec_of(const std::filesystem::path& directory, std::string_view recorded);

}  // namespace ingot::formats
