#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/hash.h"
#include "formats/json/json.h"

namespace ingot::formats {

/// Throws kCorrupt in file `where`.
[[noreturn]] void fail_json(std::string_view where, const std::string& message);

/// A JSON object of ours, read key by key; what remains at the end is not ours. Everything throws
/// kCorrupt naming `where`, the object and the key. For small objects: every key is a search.
class JsonFields {
 public:
  /// `path` names the object within `where`, for errors. `object` and `where` must outlive
  /// this.
  JsonFields(const Json& object, std::string_view where, std::string path);

  /// Null when the key is not there. A key is to be found once only, or expect_no_more miscounts.
  const Json* find(const char* key);
  const Json& get(const char* key);
  /// The value, null when the key is not there.
  Json optional(const char* key);
  std::string text(const char* key);
  bool boolean(const char* key);
  /// False when the key is not there.
  bool optional_boolean(const char* key);
  double real(const char* key);
  const Json& array(const char* key);
  std::uint64_t number(const char* key);
  std::uint32_t number32(const char* key);
  std::optional<std::uint32_t> optional_number(const char* key);
  std::vector<std::uint64_t> numbers(const char* key);
  std::vector<std::uint32_t> numbers32(const char* key);
  /// Empty when the key is not there.
  std::vector<std::uint64_t> optional_numbers(const char* key);
  std::vector<std::uint32_t> optional_numbers32(const char* key);
  Hash128 hash(const char* key);
  /// A name that this program may join to a directory: relative, and never out of it.
  std::string inner_path(const char* key);
  /// The same, empty when the key is not there.
  std::string optional_inner_path(const char* key);
  void expect_no_more() const;

 private:
  [[noreturn]] void wrong(const char* key, const char* wanted) const;
  std::uint64_t as_number(const Json& value, const char* key) const;
  std::uint32_t as_number32(const Json& value, const char* key) const;
  std::vector<std::uint64_t> as_numbers(const Json& value, const char* key) const;
  std::vector<std::uint32_t> as_numbers32(const Json& value, const char* key) const;
  bool as_boolean(const Json& value, const char* key) const;
  std::string as_inner_path(const Json& value, const char* key) const;

  const Json& object_;
  std::string_view where_;
  std::string path_;
  std::size_t n_used_ = 0;
};

}  // namespace ingot::formats
