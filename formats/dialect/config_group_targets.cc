#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "formats/base/words.h"
#include "formats/dialect/config_groups.h"
#include "formats/modules/module_list.h"

// Which group a module falls to.

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
  std::mutex mutex;
  std::unordered_map<std::string, std::size_t> places;
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
  std::string name(module);
  // Only expressions take longer than a look into what was found.
  if (patterns.empty()) return match(name);
  const std::scoped_lock lock(found->mutex);
  const auto known = found->places.find(name);
  if (known != found->places.end()) return known->second;
  const std::size_t place = match(name);
  found->places.emplace(std::move(name), place);
  return place;
}

std::size_t ConfigGroups::Entries::find_whole(std::string_view module) const {
  std::size_t place = find(module);
  if (texts.empty() || place != kNone) return place;
  for (const std::string& fused : fused_modules(module)) place = std::min(place, find(fused));
  return place;
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
