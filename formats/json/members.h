#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {

/// The result of `read`, which takes a document of ingot's own apart by at() and get(). Throws
/// kCorrupt in file `where`, with the remedy, for a member that is missing or of another kind: the
/// library's exceptions have no words for users.
template <typename Read>
auto read_members(std::string_view where, std::string_view remedy, const Read& read) {
  try {
    return read();
  } catch (const Json::exception&) {
    fail_json(where,
              fmt::format("has a member that is missing or of another kind than ingot writes ({})",
                          remedy));
  }
}

}  // namespace ingot::formats
