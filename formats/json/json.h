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
  virtual void key(std::string_view name) = 0;
  /// A string, number, boolean or null.
  virtual void value(Json&& scalar) = 0;
  void text(std::string_view text) { value(Json(std::string(text))); }
};

/// Numbers that a text may hold. Released files have some that JSON does not have.
enum class JsonNumbers : std::uint8_t {
  kOfJson,     ///< numbers of JSON, integers within 64 bits
  kWithWords,  ///< numbers of JSON, Infinity, -Infinity and NaN, as Python's json module writes
  /// All of these, and integers beyond 64 bits, as the nearest number: for files that are never
  /// written again, such as tokenizer_config.json (model_max_length 10^30).
  kRounded,
};

/// Sends exactly one JSON value to `events`. Refuses everything that parse_json refuses, except
/// duplicate keys: the receiver decides about those. `text_offset` is the place of the text in the
/// file, for the byte in errors. Exceptions of the receiver pass through.
void parse_json_events(std::string_view text, std::string_view where, JsonEvents& events,
                       std::uint64_t text_offset = 0, JsonNumbers numbers = JsonNumbers::kOfJson);

/// Parses exactly one JSON value. Stricter than nlohmann: duplicate keys, invalid UTF-8, nesting
/// beyond 64 and integers beyond 64 bits are kCorrupt, and so are a byte order mark and NUL bytes.
/// `where` names the file in the error.
Json parse_json(std::string_view text, std::string_view where);

/// Most values of a config and its like. One of AutoRound with nine words about each matrix of
/// 70,000 experts has 630,000; a tree takes up to 100 times the bytes of its text.
inline constexpr std::size_t kMaxConfigValues = std::size_t{1} << 20;

/// Most members of an object of a config: a map of the modules of such a mixture has 70,000.
inline constexpr std::size_t kMaxConfigMembers = std::size_t{1} << 17;

/// Most memory of its tree, of which there are several copies at a time; that one of AutoRound
/// takes 47 MB.
inline constexpr std::size_t kMaxConfigTreeBytes = std::size_t{56} << 20;

/// parse_json, of a config: scalars, objects and arrays are its values, and more than
/// kMaxConfigValues, kMaxConfigMembers of one object or kMaxConfigTreeBytes are kLimit.
Json parse_config(std::string_view text, std::string_view where,
                  JsonNumbers numbers = JsonNumbers::kWithWords);

/// Reads and parses a file of at most `max_bytes` as a config, with all JsonNumbers.
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
