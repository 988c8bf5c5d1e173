#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ingot::formats {

/// JSON with keys in the order of the file; complete in formats/json/json.h. Headers include this
/// one, and hold a JsonValue: the library's own takes seconds to read.
using Json = nlohmann::ordered_json;

/// A Json as the member of a struct whose header does without the complete type. Copies share it:
/// it is replaced, never changed.
class JsonValue {
 public:
  JsonValue();            ///< null
  JsonValue(Json value);  // NOLINT(google-explicit-constructor): a member is set as a Json is
  operator const Json&() const { return *value_; }  // NOLINT(google-explicit-constructor): same
  const Json& operator*() const { return *value_; }
  const Json* operator->() const { return value_.get(); }
  [[nodiscard]] bool is_null() const;
  /// GCC 13 takes no conversion for the left side without this.
  friend bool operator==(const JsonValue& a, const Json& b);

 private:
  std::shared_ptr<const Json> value_;
};

/// Two-space indentation, a final newline, keys in their order: the one way in which we write JSON
/// files.
std::string json_text(const Json& value);

}  // namespace ingot::formats
