#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json/json_fields.h"

namespace ingot::inference {

/// A text from the file in the form that error messages have: in quotes, control characters
/// escaped, cut after 120 bytes.
std::string quote_text(std::string_view text);

/// One object of tokenizer.json, e.g. a normalizer with its options. Keys that are not read are
/// ignored, as Hugging Face does; Tokenizer::parse adds the file to errors.
using Component = formats::JsonFields;

/// A component's text of exactly one code point.
std::string character_field(const Component& component, const char* key);

/// A component as the list of its steps: empty for null, the parts of a `Sequence` (whose list has
/// the key `list_key`) and of those inside it, in order, or the component itself. More than 256 are
/// kLimit.
std::vector<Component> component_steps(const formats::Json* value, const std::string& path,
                                       const char* list_key);

/// The maker of a type of component.
template <class Make>
struct ComponentRow {
  std::string_view type;
  Make make;
};

/// The steps of a component, made by the rows. Throws kUnsupported for a type that has no row,
/// naming it and those that have.
template <class Rows>
auto make_steps(const Rows& rows, const formats::Json* value, const std::string& path,
                const char* list_key) {
  std::vector<decltype(rows.front().make(std::declval<const Component&>()))> made;
  for (const Component& step : component_steps(value, path, list_key)) {
    const std::string type = step.text("type");
    const auto* const found =
        std::ranges::find(rows, type, [](const auto& row) { return row.type; });
    if (found == rows.end()) {
      std::string known;
      for (const auto& row : rows) known += ", " + std::string(row.type);
      step.unsupported("has type " + quote_text(type) +
                       ", which is not supported (supported: Sequence" + known + ")");
    }
    made.push_back(found->make(step));
  }
  return made;
}

}  // namespace ingot::inference
