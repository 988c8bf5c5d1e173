#include "check/rules/loader_targets.h"

#include <tuple>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kRegexMark = "re:";
// Each is tried on every module of the model: a microsecond and more.
constexpr std::size_t kMaxPatterns = 2'000;

std::string text_at(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

std::uint64_t number_at(const Json& object, const char* key, std::uint64_t absent) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_unsigned() ? value->get<std::uint64_t>()
                                                              : absent;
}

bool is_absent(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value == object.end() || value->is_null();
}

// A strategy that is not named follows from what else there is.
std::string strategy_of(const Json& weights) {
  if (std::string named = text_at(weights, "strategy"); !named.empty()) return named;
  if (!is_absent(weights, "block_structure")) return "block";
  if (is_absent(weights, "group_size")) return "tensor";
  return weights["group_size"].is_number_unsigned() && weights["group_size"] != 0 ? "group"
                                                                                  : "channel";
}

bool has_static_scale(const Json& group) {
  const auto inputs = group.find("input_activations");
  if (inputs == group.end() || !inputs->is_object()) return false;
  const auto dynamic = inputs->find("dynamic");
  // "local": scales of groups are found at run time, the global one is stored.
  return dynamic == inputs->end() || *dynamic == false || *dynamic == "local";
}

}  // namespace

std::optional<SchemeId> scheme_of_arguments(const Json& weights) {
  const std::string strategy = strategy_of(weights);
  const std::string type = is_absent(weights, "type") ? "int" : text_at(weights, "type");
  const std::uint64_t bits = number_at(weights, "num_bits", 8);
  const std::uint64_t group = number_at(weights, "group_size", 0);
  if (weights.value("symmetric", Json(true)) == false) return std::nullopt;
  if (type == "int") {
    if (bits == 8 && strategy == "channel") return SchemeId::kInt8Channel;
    return std::nullopt;
  }
  if (type != "float") return std::nullopt;
  if (bits == 8) {
    if (strategy == "block") return SchemeId::kFp8Block;
    if (strategy == "channel") return SchemeId::kFp8Channel;
    if (strategy == "tensor") return SchemeId::kFp8Tensor;
    if (strategy == "group" && group == 32) return SchemeId::kMxfp8;
  } else if (bits == 4) {
    if (strategy == "tensor_group" && group == 16) return SchemeId::kNvfp4;
    if (strategy == "group" && group == 32) return SchemeId::kMxfp4;
  }
  return std::nullopt;
}

LoaderTargets::LoaderTargets(const Json& block) {
  const auto groups = block.find("config_groups");
  if (groups == block.end() || !groups->is_object()) {
    faults_.emplace_back("has no config_groups");
  } else {
    for (const auto& [name, group] : groups->items()) {
      if (!group.is_object()) {
        faults_.push_back(fmt::format("config_groups.{} is not an object", name));
        continue;
      }
      TargetGroup& known = groups_.emplace_back();
      known.name = name;
      known.format = text_at(group, "format");
      known.has_static_inputs = has_static_scale(group);
      const auto weights = group.find("weights");
      if (weights != group.end() && weights->is_object()) {
        known.has_weights = true;
        known.scheme = scheme_of_arguments(*weights);
      }
      const auto targets = group.find("targets");
      if (targets == group.end() || !targets->is_array() || targets->empty()) {
        faults_.push_back(fmt::format("config_groups.{} has no targets", name));
        continue;
      }
      for (const Json& target : *targets) {
        if (!target.is_string()) {
          faults_.push_back(fmt::format("config_groups.{} has a target that is no string", name));
        } else if (target == "Linear") {
          if (linear_ == kNone) linear_ = groups_.size() - 1;
        } else {
          const auto text = target.get<std::string>();
          // Module names have dots, classes have none.
          const bool is_regex = text.starts_with(kRegexMark);
          if (!is_regex && text.find('.') == std::string::npos) has_unknown_classes_ = true;
          add_entry(targets_, text, groups_.size() - 1);
        }
      }
    }
  }
  const auto ignore = block.find("ignore");
  if (ignore == block.end() || ignore->is_null()) return;
  if (!ignore->is_array()) {
    faults_.emplace_back("has an ignore that is no list");
    return;
  }
  for (const Json& entry : *ignore) {
    if (entry.is_string()) {
      add_entry(ignored_, entry.get<std::string>(), 0);
    } else {
      faults_.emplace_back("has an entry of ignore that is no string");
    }
  }
}

void LoaderTargets::add_entry(Entries& entries, const std::string& text, std::size_t value) {
  if (!text.starts_with(kRegexMark)) {
    entries.add_name(text, value);
    return;
  }
  if (++n_patterns_ > kMaxPatterns) {
    if (n_patterns_ == kMaxPatterns + 1) {
      faults_.push_back(
          fmt::format("holds more than {} regular expressions: the others are left "
                      "out (name the modules instead)",
                      kMaxPatterns));
    }
    return;
  }
  try {
    entries.add_pattern(Pattern(text), value);
  } catch (const Error& error) {
    faults_.push_back(fmt::format("holds '{}': {}", text, error.message()));
  }
}

std::size_t LoaderTargets::Entries::find(const std::string& module) const {
  std::size_t place = kNone;
  std::size_t value = kNone;
  if (const auto name = names_.find(module); name != names_.end())
    std::tie(place, value) = name->second;
  for (const Expression& expression : patterns_) {
    if (expression.place > place) break;
    if (expression.pattern.matches(module)) return expression.value;
  }
  return value;
}

const TargetGroup* LoaderTargets::group_of(const std::string& module) const {
  std::size_t group = targets_.find(module);
  if (group == kNone) group = linear_;
  return group == kNone ? nullptr : &groups_[group];
}

}  // namespace ingot::formats
