#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "formats/base/words.h"
#include "formats/dialect/config_groups.h"
#include "formats/modules/module_list.h"

// The group that a module falls to.

namespace ingot::formats {

namespace {

/// A linear layer, and the module of vLLM and SGLang that it is a part of.
struct Fusion {
  std::string_view part, whole;
};
constexpr std::array kFusions = {
    Fusion{"q_proj", "qkv_proj"},
    Fusion{"k_proj", "qkv_proj"},
    Fusion{"v_proj", "qkv_proj"},
    Fusion{"gate_proj", "gate_up_proj"},
    Fusion{"up_proj", "gate_up_proj"},
    Fusion{"q_a_proj", "fused_qkv_a_proj"},
    Fusion{"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
    Fusion{"q_a_proj", "fused_qkv_a_proj_with_mqa"},
    Fusion{"kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"},
    Fusion{"in_proj_qkv", "in_proj_qkvz"},
    Fusion{"in_proj_z", "in_proj_qkvz"},
    Fusion{"in_proj_b", "in_proj_ba"},
    Fusion{"in_proj_a", "in_proj_ba"},
};

/// The engines' modules of which a linear layer is a part: routed experts are one for a layer.
std::vector<std::string> fused_modules(std::string_view module) {
  std::vector<std::string> fused;
  if (const std::string_view experts = experts_of(module); !experts.empty()) {
    fused.emplace_back(experts);
    return fused;
  }
  const std::size_t leaf = module.rfind('.') + 1;
  for (const Fusion& fusion : kFusions) {
    if (module.substr(leaf) == fusion.part)
      fused.push_back(std::string(module.substr(0, leaf)).append(fusion.whole));
  }
  return fused;
}

}  // namespace

struct ConfigGroups::Entries::Found {
  /// A module that was asked for, and its answers.
  struct Row {
    std::string name;
    std::size_t place = kNone;              ///< answer of find()
    std::optional<std::size_t> whole = {};  ///< answer of find_whole(), once that was called
  };
  std::mutex mutex;
  std::deque<Row> rows;  ///< modules in the order in which they were first asked for
  std::unordered_map<std::string_view, std::size_t> numbers;
  std::size_t last = 0;  ///< number of the row that was asked for last

  /// Rules ask for all modules in one order: the next row is nearly always meant, and no name is
  /// hashed.
  Row& row_of(std::string_view module, const Entries& entries) {
    for (const std::size_t number : {last, last + 1}) {
      if (number < rows.size() && rows[number].name == module) return rows[last = number];
    }
    if (const auto known = numbers.find(module); known != numbers.end())
      return rows[last = known->second];
    std::string name(module);
    const std::size_t place = entries.match(name);
    last = rows.size();
    Row& row = rows.emplace_back(Row{.name = std::move(name), .place = place});
    numbers.emplace(row.name, last);
    return row;
  }
};

ConfigGroups::Entries::Entries() : found(std::make_shared<Found>()) {}

std::size_t ConfigGroups::Entries::match(const std::string& module) const {
  const auto name = places.find(module);
  const std::size_t named = name == places.end() ? kNone : name->second;
  for (const auto& [pattern, place] : patterns) {
    if (place >= named) break;
    if (pattern.matches(module)) return place;
  }
  return named;
}

std::size_t ConfigGroups::Entries::find(std::string_view module) const {
  if (texts.empty()) return kNone;
  // Only expressions take longer than a look into what was found.
  if (patterns.empty()) return match(std::string(module));
  const std::scoped_lock lock(found->mutex);
  return found->row_of(module, *this).place;
}

std::size_t ConfigGroups::Entries::find_whole(std::string_view module) const {
  if (texts.empty()) return kNone;
  const auto of_whole = [&](std::size_t place, const auto& place_of) {
    if (place != kNone) return place;
    for (const std::string& fused : fused_modules(module)) place = std::min(place, place_of(fused));
    return place;
  };
  if (patterns.empty())
    return of_whole(match(std::string(module)),
                    [&](const std::string& name) { return match(name); });
  const std::scoped_lock lock(found->mutex);
  Found::Row& row = found->row_of(module, *this);
  if (!row.whole) {
    row.whole = of_whole(row.place,
                         [&](const std::string& name) { return found->row_of(name, *this).place; });
  }
  return *row.whole;
}

const ConfigGroup* ConfigGroups::named_target(std::string_view module) const {
  const std::size_t place = targets_.find(module);
  return place == kNone ? nullptr : &groups_[targets_.groups[place]];
}

const ConfigGroup* ConfigGroups::target_of(std::string_view module) const {
  const std::size_t place = targets_.find_whole(module);
  return place == kNone ? exact_target(kLinear) : &groups_[targets_.groups[place]];
}

const ConfigGroup* ConfigGroups::class_target(std::string_view name) const {
  const auto is_same = [](char a, char b) { return lower_case(a) == lower_case(b); };
  for (std::size_t place = 0; place < targets_.texts.size(); ++place) {
    const std::string& text = targets_.texts[place];
    if (text.starts_with("re:")) continue;
    if (std::search(name.begin(), name.end(), text.begin(), text.end(), is_same) != name.end() ||
        text.empty())
      return &groups_[targets_.groups[place]];
  }
  return nullptr;
}

const ConfigGroup* ConfigGroups::exact_target(std::string_view text) const {
  const auto place = targets_.places.find(std::string(text));
  return place == targets_.places.end() ? nullptr : &groups_[targets_.groups[place->second]];
}

std::vector<ClassedModule> joined_modules(std::span<const ClassedModule> modules) {
  std::map<std::string, std::set<std::uint32_t>> classes_of;
  for (const ClassedModule& module : modules) {
    if (!experts_of(module.name).empty()) continue;
    for (std::string& whole : fused_modules(module.name))
      classes_of[std::move(whole)].insert(module.cls);
  }
  std::vector<ClassedModule> joined;
  for (const auto& [name, classes] : classes_of) {
    if (classes.size() == 1) joined.push_back({.name = name, .cls = *classes.begin()});
  }
  return joined;
}

std::optional<QuantizationGroup> ConfigGroups::group_of(std::string_view module) const {
  const ConfigGroup* group = stored_group(module);
  if (group == nullptr || !group->scheme || !group->activations) return std::nullopt;
  if (scheme_facts(*group->scheme).group_rows > 1 && group->block[0] == 0) return std::nullopt;
  return QuantizationGroup{.scheme = *group->scheme,
                           .activations = *group->activations,
                           .block = group->block,
                           .has_zero_points = group->has_zero_points,
                           .has_group_order = group->has_group_order};
}

}  // namespace ingot::formats
