#pragma once

#include <string>
#include <vector>

#include "formats/json/json.h"

namespace ingot::testing {

/// A change of a JSON document: the value at a pointer (`/a/0/b`, or `/a/-` behind the last entry
/// of a list) becomes `value`; without one it is taken away.
struct JsonEdit {
  JsonEdit(std::string place, formats::Json to) : at(std::move(place)), value(std::move(to)) {}
  /// The same as a text: "/a/0/b 7", "/a/0/b" for a value that is taken away, or "7" for all.
  JsonEdit(const std::string& text)
      : at(text.starts_with('/') ? text.substr(0, text.find(' ')) : "") {
    if (at.size() < text.size()) value = formats::Json::parse(text.substr(at.size()));
  }
  JsonEdit(const char* text) : JsonEdit(std::string(text)) {}

  std::string at;
  formats::Json value = formats::Json::value_t::discarded;

  void apply(formats::Json& json) const {
    const formats::Json::json_pointer place(at);
    if (!value.is_discarded()) {
      json[place] = value;
      return;
    }
    formats::Json& owner = json.at(place.parent_pointer());
    if (owner.is_array()) {
      owner.erase(std::stoul(place.back()));
    } else {
      owner.erase(place.back());
    }
  }
};

/// The document with its changes, as a file would say it: numbers without a sign.
inline formats::Json edited(formats::Json json, const std::vector<JsonEdit>& edits) {
  for (const JsonEdit& edit : edits) edit.apply(json);
  return formats::Json::parse(json.dump());
}

}  // namespace ingot::testing
