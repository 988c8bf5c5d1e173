#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/hash.h"
#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// Throws kCorrupt in file `where`.
[[noreturn]] void fail_json(std::string_view where, const std::string& message);

/// The number where `value` is a whole one from 0 to `max`, else nullopt.
std::optional<std::uint64_t> whole_number(const Json& value, std::uint64_t max);

/// A JSON object, read key by key. Throws kCorrupt, which names the file, the object's path and the
/// key, for a value that is missing, of another kind or out of range. For the optional readers null
/// counts as missing: they return nullopt, nullptr or an empty list then. For small objects: every
/// key is a search.
class JsonFields {
 public:
  /// `where` names the file in errors, and is empty where a caller adds it. `path` names the object
  /// within the file, and is empty for the whole. `object` and `where` must outlive this.
  JsonFields(const Json& object, std::string_view where, std::string path = {});

  [[nodiscard]] const std::string& path() const { return path_; }

  /// The value of any kind; find returns nullptr when it is missing.
  [[nodiscard]] const Json& get(const char* key) const;
  [[nodiscard]] const Json* find(const char* key) const;

  [[nodiscard]] const Json& array(const char* key) const;
  [[nodiscard]] const Json* optional_array(const char* key) const;
  [[nodiscard]] JsonFields child(const char* key) const;
  [[nodiscard]] std::optional<JsonFields> optional_child(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::string text(const char* key, std::string_view if_missing) const;
  [[nodiscard]] std::optional<std::string> optional_text(const char* key) const;
  [[nodiscard]] bool boolean(const char* key) const;
  [[nodiscard]] bool boolean(const char* key, bool if_missing) const;
  [[nodiscard]] double real(const char* key) const;
  [[nodiscard]] std::optional<double> optional_real(const char* key, double least,
                                                    double most) const;

  static constexpr std::uint64_t kAnyNumber = std::numeric_limits<std::uint64_t>::max();
  /// Whole numbers from 0 to `max`.
  [[nodiscard]] std::uint64_t number(const char* key, std::uint64_t max = kAnyNumber) const;
  [[nodiscard]] std::optional<std::uint64_t> optional_number(const char* key,
                                                             std::uint64_t max) const;
  [[nodiscard]] std::uint32_t number32(const char* key) const;
  [[nodiscard]] std::optional<std::uint32_t> optional_number32(const char* key) const;
  [[nodiscard]] std::vector<std::uint64_t> numbers(const char* key) const;
  [[nodiscard]] std::vector<std::uint64_t> optional_numbers(const char* key) const;
  [[nodiscard]] std::vector<std::uint32_t> numbers32(const char* key) const;
  [[nodiscard]] std::vector<std::uint32_t> optional_numbers32(const char* key) const;
  /// `value`, found under `key`, as a whole number from 0 to `max`.
  [[nodiscard]] std::uint64_t as_number(const char* key, const Json& value,
                                        std::uint64_t max) const;

  [[nodiscard]] Hash128 hash(const char* key) const;
  /// A name that this program may join to a directory: relative, and never out of it.
  [[nodiscard]] std::string inner_path(const char* key) const;
  /// inner_path() of a key, empty when the key is missing.
  [[nodiscard]] std::string optional_inner_path(const char* key) const;

  /// Throws unless every key of the object was read. REQUIRES: none was read twice.
  void expect_no_more() const;

  /// kCorrupt: "'PATH.KEY' FACT" or "'PATH' FACT".
  [[noreturn]] void refuse(const char* key, std::string_view fact) const;
  [[noreturn]] void refuse(std::string_view fact) const;
  /// kUnsupported: "'PATH' FACT".
  [[noreturn]] void unsupported(std::string_view fact) const;

 private:
  [[nodiscard]] std::string name_of(std::string_view key) const;
  [[noreturn]] void wrong(const char* key, const Json& value, std::string_view wanted) const;
  [[nodiscard]] const Json& as_array(const char* key, const Json& value) const;
  [[nodiscard]] std::string as_text(const char* key, const Json& value) const;
  [[nodiscard]] bool as_boolean(const char* key, const Json& value) const;
  template <class T>
  std::vector<T> as_numbers(const char* key, const Json& value) const;

  const Json* object_;
  std::string_view where_;
  std::string path_;
  mutable std::size_t n_read_ = 0;
};

}  // namespace ingot::formats
