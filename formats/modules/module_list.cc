#include "formats/modules/module_list.h"

#include <algorithm>

namespace ingot::formats {

ModuleList::ModuleList(std::span<const std::string> entries, PatternSyntax syntax)
    : syntax_(syntax) {
  for (const std::string& entry : entries) {
    const bool is_pattern = syntax == PatternSyntax::kRegex
                                ? entry.starts_with("re:")
                                : entry.find_first_of("*?") != std::string::npos;
    if (is_pattern) {
      patterns_.emplace_back(entry);
    } else {
      names_.push_back(entry);
    }
  }
  std::sort(names_.begin(), names_.end());
}

bool ModuleList::covers_for_all(std::string_view module) const {
  return std::binary_search(names_.begin(), names_.end(), module) ||
         std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return pattern.matches(module); });
}

bool ModuleList::covers_for_any(std::string_view module) const {
  if (covers_for_all(module)) return true;
  return syntax_ == PatternSyntax::kGlob &&
         std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
           return module.find(name) != std::string_view::npos;
         });
}

std::string_view experts_of(std::string_view module) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = module.rfind(kExperts);
  return at == std::string_view::npos ? std::string_view()
                                      : module.substr(0, at + kExperts.size() - 1);
}

bool names_or_holds(std::span<const std::string> sorted, std::string_view module) {
  while (true) {
    if (std::binary_search(sorted.begin(), sorted.end(), module)) return true;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return false;
    module = module.substr(0, dot);
  }
}

}  // namespace ingot::formats
