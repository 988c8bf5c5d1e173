// A config has rope in up to three places, and readers prefer different ones: transformers 5 takes
// rope_scaling before rope_parameters where both are there, others the other way round.

#include "formats/config/rope_meaning.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kTheta = "rope_theta";
constexpr std::string_view kPartial = "partial_rotary_factor";

// The meaning of a parameter of rope that is absent.
Json absent_rope(std::string_view key) {
  if (key == kTheta) return 10000;
  if (key == "rope_type") return "default";
  if (key == "beta_fast") return 32;
  if (key == "beta_slow" || key == kPartial) return 1;
  return nullptr;
}

// Parameters of rope by key, each with its place.
using RopeValues = std::vector<std::pair<std::string, SaidValue>>;

RopeValues rope_values(const Json& object, const std::string& path) {
  RopeValues values;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    values.emplace_back(key == "type" ? "rope_type" : key,
                        SaidValue{.value = value, .path = fmt::format("{}.{}", path, key)});
  }
  return values;
}

// transformers 5 may have parameters for each kind of layer; those that all are alike are as one.
Json flat_rope(const Json& object) {
  if (!object.is_object() || object.empty()) return object;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object() || value != object.front()) return object;
  }
  return object.front();
}

// Readers of only one object miss a parameter that only the other has.
void miss_in_rope(const RopeValues& values, const RopeValues& other, const RopeSink& sink) {
  for (const auto& [key, said] : values) {
    const bool is_there = std::any_of(
        other.begin(), other.end(), [&key = key](const auto& entry) { return entry.first == key; });
    if (is_there || key == kTheta || key == kPartial || said.value == absent_rope(key)) continue;
    const std::string& elsewhere = other.front().second.path;
    sink.contradict(
        fmt::format("{} is {}, but {} says nothing of it: readers take one or the other", said.path,
                    config_text(said.value), elsewhere.substr(0, elsewhere.rfind('.'))));
  }
}

}  // namespace

void read_rope(const Json& config, const std::string& prefix, const RopeSink& sink) {
  const auto path = [&](std::string_view key) { return fmt::format("{}{}", prefix, key); };
  std::vector<RopeValues> objects;
  for (const std::string_view key : kRopeObjects) {
    const Json object = flat_rope(json_member(config, key));
    if (object.is_object() && !object.empty()) objects.push_back(rope_values(object, path(key)));
  }
  for (const RopeValues& values : objects) {
    for (const auto& [key, said] : values) sink.say("rope." + key, said);
  }
  if (objects.size() == 2) miss_in_rope(objects[0], objects[1], sink);
  if (objects.size() == 2) miss_in_rope(objects[1], objects[0], sink);
  for (const std::string_view key : {kTheta, kPartial}) {
    const Json& value = json_member(config, key);
    if (!value.is_null())
      sink.say(fmt::format("rope.{}", key), {.value = value, .path = path(key)});
  }
}

void forget_idle_rope(ConfigMeaning::Values& known, const std::string& begin) {
  const auto type = known.find(begin + "rope_type");
  const bool is_plain = type == known.end() || *type->second.value == "default";
  for (auto entry = known.lower_bound(begin);
       entry != known.end() && entry->first.starts_with(begin);) {
    const std::string key = entry->first.substr(begin.size());
    const bool counts = !is_plain || key == kTheta || key == kPartial || key.starts_with("mrope") ||
                        entry->second.value->is_object();
    const bool is_absent = *entry->second.value == absent_rope(key);
    entry = counts && !is_absent ? std::next(entry) : known.erase(entry);
  }
}

}  // namespace ingot::formats
