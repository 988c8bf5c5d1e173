#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "formats/json/nlohmann.h"

namespace ingot::formats {

/// Greatest depth of nested objects and arrays.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Longest key (tensor names are keys), in bytes; keeps error messages printable. Beyond it is
/// kLimit.
inline constexpr std::size_t kMaxJsonKeyBytes = 65'536;

/// Receives a JSON text piece by piece, in its order: for texts too long to be held as a tree.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void begin_array() = 0;
  /// The end of the innermost open object or array.
  virtual void end() = 0;
  virtual void key(std::string&& name) = 0;
  /// A string, number, boolean or null.
  virtual void value(Json&& scalar) = 0;
};

/// Sends exactly one JSON value to `events`. Refuses everything that parse_json refuses, except
/// duplicate keys: the receiver decides about those. `text_offset` is the place of the text in the
/// file, for the byte in errors. Exceptions of the receiver pass through.
void parse_json_events(std::string_view text, std::string_view where, JsonEvents& events,
                       std::uint64_t text_offset = 0);

/// Parses exactly one JSON value. Stricter than nlohmann: duplicate keys, invalid UTF-8, nesting
/// beyond 64 and integers beyond 64 bits are kCorrupt, and so are a byte order mark and NUL bytes.
/// `where` names the file in the error.
Json parse_json(std::string_view text, std::string_view where);

/// Reads and parses a JSON file of at most `max_bytes`, with Python's words (python_words.h).
Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// The member of an object; null where there is none, or no object.
const Json& json_member(const Json& object, std::string_view key);

/// The string at `key`, or empty.
std::string text_at(const Json& object, std::string_view key);

/// The members of the list at `key` that are strings; none when `key` holds no list.
std::vector<std::string> strings_at(const Json& object, std::string_view key);

/// The array of row(entry) for every entry of a range.
template <typename Range, typename Row>
Json json_list(const Range& range, const Row& row) {
  Json list = Json::array();
  for (const auto& entry : range) list.push_back(std::invoke(row, entry));
  return list;
}

}  // namespace ingot::formats
