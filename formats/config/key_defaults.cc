#include "formats/config/key_defaults.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "formats/config/keys.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxDefaults = 256;

Json value_of(const Yaml& value) {
  if (value.is_null()) return nullptr;
  if (value.is_list()) {
    Json list = Json::array();
    for (const Yaml& entry : value.list("a default")) list.push_back(value_of(entry));
    return list;
  }
  const std::string& text = value.text("a default");
  Json read = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return read.is_number() || read.is_boolean() ? read : Json(text);
}

bool has_key(const Json& object, const std::string& key) {
  const KeyRow* row = find_key(key);
  if (row == nullptr) return object.contains(key);
  return std::ranges::any_of(row->spellings,
                             [&](const std::string& one) { return object.contains(one); });
}

/// The value itself, or that of the key which it names; null where the config lacks that.
const Json& meant(const Json& value, const Json& object) {
  constexpr std::string_view kAs = "as ";
  if (!value.is_string()) return value;
  const std::string_view text = value.get_ref<const std::string&>();
  if (!text.starts_with(kAs)) return value;
  const std::string_view key = text.substr(kAs.size());
  return json_member(object, find_key(key) == nullptr ? key : spelling_in(object, key));
}

bool add(const std::string& path, const Json& value, Json& object) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) {
    const Json& said = meant(value, object);
    if (has_key(object, path) || (said.is_null() && !value.is_null())) return false;
    object[path] = Json(said);
    return true;
  }
  const std::string outer = path.substr(0, dot);
  if (!object.contains(outer)) object[outer] = Json::object();
  return object[outer].is_object() && add(path.substr(dot + 1), value, object[outer]);
}

}  // namespace

Json read_defaults(const Yaml& defaults) {
  if (defaults.members("defaults").size() > kMaxDefaults)
    defaults.refuse(fmt::format("there are more than {} defaults", kMaxDefaults));
  Json values = Json::object();
  for (const Yaml::Member& member : defaults.members("defaults"))
    values[member.key] = value_of(member.value);
  return values;
}

bool add_defaults(const Json& defaults, Json& keys) {
  bool is_changed = false;
  for (const auto& [path, value] : defaults.items()) is_changed |= add(path, value, keys);
  return is_changed;
}

}  // namespace ingot::formats
