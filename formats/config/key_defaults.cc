#include "formats/config/key_defaults.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/config/keys.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxDefaults = 256;
constexpr std::uint64_t kMostByLayer = std::uint64_t{1} << 16;

Json scalar_of(const std::string& text) {
  Json read = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return read.is_number() || read.is_boolean() ? read : Json(text);
}

Json value_of(const Yaml& value) {
  if (value.is_null()) return nullptr;
  if (value.is_map()) {
    Json object = Json::object();
    for (const Yaml::Member& member : value.members("a default"))
      object[member.key] = value_of(member.value);
    return object;
  }
  if (value.is_list()) {
    Json list = Json::array();
    for (const Yaml& entry : value.list("a default")) list.push_back(value_of(entry));
    return list;
  }
  return scalar_of(value.text("a default"));
}

bool has_key(const Json& object, const std::string& key) {
  const KeyRow* row = find_key(key);
  if (row == nullptr) return object.contains(key);
  return std::ranges::any_of(row->spellings,
                             [&](const std::string& one) { return object.contains(one); });
}

const Json& config_value_under(const Json& object, std::string_view key) {
  return json_member(object, find_key(key) == nullptr ? key : spelling_in(object, key));
}

bool is_filled(const Json& value) {
  return value.is_object() && !value.empty();
}

/// True if the config says something in the place of an object that a default has. Parameters of
/// rope have two names, and transformers takes either.
bool has_object(const Json& object, const std::string& key) {
  return is_filled(json_member(object, key)) ||
         (key == "rope_parameters" && is_filled(json_member(object, "rope_scaling")));
}

/// The words in turn, an entry per main layer; null where the config does not say how many.
Json by_layer(const std::vector<std::string>& words, const Json& object) {
  const auto n = whole_number(config_value_under(object, "num_hidden_layers"), kMostByLayer);
  if (!n || words.empty()) return nullptr;
  Json list = Json::array();
  for (std::uint64_t layer = 0; layer < *n; ++layer) {
    const std::string& word = words[static_cast<std::size_t>(layer % words.size())];
    list.push_back(word == "{layer}" ? Json(layer) : scalar_of(word));
  }
  return list;
}

/// The value itself, that of the key which it names, or a list by layer; null where the config
/// lacks what it needs.
Json meant(const Json& value, const Json& object) {
  constexpr std::string_view kAs = "as ", kEach = "each ";
  if (!value.is_string()) return Json(value);
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.starts_with(kAs)) return Json(config_value_under(object, text.substr(kAs.size())));
  if (text.starts_with(kEach)) return by_layer(words_in(text.substr(kEach.size())), object);
  return Json(value);
}

bool add(const std::string& path, const Json& value, Json& object) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) {
    if (value.is_object() ? has_object(object, path) : has_key(object, path)) return false;
    Json said = meant(value, object);
    if (said.is_null()) return false;
    object[path] = std::move(said);
    return true;
  }
  const std::string outer = path.substr(0, dot);
  if (json_member(object, outer).is_null()) object[outer] = Json::object();
  return object[outer].is_object() && add(path.substr(dot + 1), value, object[outer]);
}

}  // namespace

Json read_defaults(const Yaml& defaults, const Json& base) {
  if (defaults.members("defaults").size() > kMaxDefaults)
    defaults.refuse("there are more than {} defaults", kMaxDefaults);
  Json values = base.is_object() ? Json(base) : Json::object();
  for (const Yaml::Member& member : defaults.members("defaults")) {
    values.erase(member.key);
    if (const KeyRow* row = find_key(member.key))
      for (const std::string& spelling : row->spellings) values.erase(spelling);
    Json value = value_of(member.value);
    if (!value.is_null()) values[member.key] = std::move(value);
  }
  return values;
}

bool add_defaults(const Json& defaults, Json& keys) {
  bool is_changed = false;
  for (const auto& [path, value] : defaults.items()) is_changed |= add(path, value, keys);
  return is_changed;
}

}  // namespace ingot::formats
