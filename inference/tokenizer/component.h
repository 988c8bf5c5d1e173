#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"

namespace ingot::inference {

/// A text from the file as it may stand in an error message: in quotes, control characters escaped,
/// cut after 120 bytes.
std::string quote_text(std::string_view text);

/// One object of tokenizer.json, e.g. a normalizer with its options. A key that is null counts as
/// missing. Whatever is of the wrong kind throws kCorrupt naming the object's path and the key;
/// Tokenizer::parse adds the file. Keys that nobody asks for are ignored, as Hugging Face does.
class Component {
 public:
  /// `value` must outlive this.
  Component(const formats::Json& value, std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string type() const { return text("type"); }
  /// Null when the key is missing.
  [[nodiscard]] const formats::Json* find(const char* key) const;
  [[nodiscard]] const formats::Json& get(const char* key) const;
  [[nodiscard]] const formats::Json& array(const char* key) const;
  [[nodiscard]] const formats::Json& object(const char* key) const;
  [[nodiscard]] bool flag(const char* key, bool if_missing) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::optional<std::string> optional_text(const char* key) const;
  /// Exactly one code point.
  [[nodiscard]] char32_t character(const char* key) const;
  /// A whole number of at most `max`.
  [[nodiscard]] std::uint64_t whole(const char* key, std::uint64_t max) const;
  [[nodiscard]] Component child(const char* key) const;

  /// kCorrupt: "PATH FACT".
  [[noreturn]] void refuse(std::string_view fact) const;
  /// kUnsupported: "PATH FACT".
  [[noreturn]] void unsupported(std::string_view fact) const;

 private:
  const formats::Json* value_;
  std::string path_;
};

/// Steps that one component may have; more is kLimit.
inline constexpr std::size_t kMaxSteps = 256;

/// A component as the list of its steps: nothing for null, the parts of a `Sequence` (whose list
/// stands under `list_key`) and of those inside it, in order, or the component itself.
std::vector<Component> component_steps(const formats::Json* value, const std::string& path,
                                       const char* list_key);

/// What a type of component is made by.
template <class Make>
struct ComponentRow {
  std::string_view type;
  Make make;
};

/// The row of the component's type. A type that has none is kUnsupported, naming it and those that
/// have.
template <class Rows>
const auto& find_row(const Rows& rows, const Component& component) {
  const std::string type = component.type();
  std::string known;
  for (const auto& row : rows) {
    if (row.type == type) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  component.unsupported("has type " + quote_text(type) +
                        ", which is not supported (supported: Sequence, " + known + ")");
}

/// A whole number from the file, within 0 and `max`, or nothing.
std::optional<std::uint64_t> whole_number(const formats::Json& value, std::uint64_t max);

}  // namespace ingot::inference
