#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fields.h"

namespace ingot::inference {

/// A text from the file as it may stand in an error message: in quotes, control characters escaped,
/// cut after 120 bytes.
std::string quote_text(std::string_view text);

/// One object of tokenizer.json, e.g. a normalizer with its options. Keys that nobody asks for are
/// ignored, as Hugging Face does; Tokenizer::parse adds the file to errors.
using Component = formats::JsonFields;

/// A component's text of exactly one code point.
std::string character_field(const Component& component, const char* key);

/// Steps that one component may have; more is kLimit.
inline constexpr std::size_t kMaxSteps = 256;

/// A component as the list of its steps: empty for null, the parts of a `Sequence` (whose list
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
  const std::string type = component.text("type");
  std::string known;
  for (const auto& row : rows) {
    if (row.type == type) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  component.unsupported("has type " + quote_text(type) +
                        ", which is not supported (supported: Sequence, " + known + ")");
}

}  // namespace ingot::inference
