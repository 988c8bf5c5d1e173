#include <algorithm>

#include "formats/base/words.h"
#include "formats/dialect/config_groups.h"

// Which group a module falls to.

namespace ingot::formats {

std::size_t ConfigGroups::Entries::find(std::string_view module) const {
  const auto name = places.find(std::string(module));
  const std::size_t named = name == places.end() ? kNone : name->second;
  for (const auto& [pattern, place] : patterns) {
    if (place >= named) break;
    if (pattern.matches(module)) return place;
  }
  return named;
}

const ConfigGroup* ConfigGroups::named_target(std::string_view module) const {
  const std::size_t place = targets_.find(module);
  return place == kNone ? nullptr : &groups_[targets_.groups[place]];
}

const ConfigGroup* ConfigGroups::class_target(std::string_view name) const {
  const auto is_same = [](char a, char b) { return lower_case(a) == lower_case(b); };
  for (std::size_t place = 0; place < targets_.texts.size(); ++place) {
    const std::string& text = targets_.texts[place];
    if (text.starts_with("re:")) continue;
    if (!std::ranges::search(name, text, is_same).empty() || text.empty())
      return &groups_[targets_.groups[place]];
  }
  return nullptr;
}

const ConfigGroup* ConfigGroups::exact_target(std::string_view text) const {
  const auto place = targets_.places.find(std::string(text));
  return place == targets_.places.end() ? nullptr : &groups_[targets_.groups[place->second]];
}

std::optional<QuantizationGroup> ConfigGroups::group_of(std::string_view module) const {
  const ConfigGroup* group = is_ignored(module) ? nullptr : target_of(module);
  if (group == nullptr || !group->scheme || !group->activations) return std::nullopt;
  if (scheme_facts(*group->scheme).group_rows > 1 && group->block[0] == 0) return std::nullopt;
  return QuantizationGroup{.scheme = *group->scheme,
                           .activations = *group->activations,
                           .block = group->block,
                           .has_zero_points = group->has_zero_points,
                           .has_group_order = group->has_group_order};
}

}  // namespace ingot::formats
