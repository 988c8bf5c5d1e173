#pragma once

#include <map>
#include <optional>
#include <regex>
#include <string>

#include <fnmatch.h>

#include "formats/json/json.h"

// What the JSON around an output says of a module, read as loaders read it and apart from the code
// that writes it.

namespace ingot::testing {

/// Whether an entry of a compressed-tensors list names a module: exactly, as a class of modules, or
/// by an expression matched from its start.
inline bool ct_names(const std::string& entry, const std::string& module) {
  if (!entry.starts_with("re:")) return entry == module || entry == "Linear";
  static std::map<std::string, std::regex> compiled;
  const auto pattern = compiled.try_emplace(entry, entry.substr(3)).first;
  return std::regex_search(module, pattern->second, std::regex_constants::match_continuous);
}

/// The group of compressed-tensors that a linear layer falls into; nothing for ignored ones.
inline std::optional<formats::Json> ct_group(const formats::Json& block,
                                             const std::string& module) {
  for (const formats::Json& entry : block.at("ignore")) {
    const auto text = entry.get<std::string>();
    if (text != "Linear" && ct_names(text, module)) return std::nullopt;
  }
  for (const auto& [name, group] : block.at("config_groups").items()) {
    for (const formats::Json& target : group.at("targets")) {
      if (ct_names(target.get<std::string>(), module)) return group;
    }
  }
  return std::nullopt;
}

/// Whether a list of module names, or of names of what they stand below, holds a module.
inline bool lists(const formats::Json& block, const char* key, const std::string& module) {
  if (!block.contains(key)) return false;
  for (const formats::Json& entry : block.at(key)) {
    const auto text = entry.get<std::string>();
    if (module == text || module.starts_with(text + ".")) return true;
  }
  return false;
}

/// Whether a glob of ModelOpt's list fits a module.
inline bool modelopt_excludes(const formats::Json& list, const std::string& module) {
  for (const formats::Json& entry : list) {
    if (::fnmatch(entry.get<std::string>().c_str(), module.c_str(), 0) == 0) return true;
  }
  return false;
}

}  // namespace ingot::testing
