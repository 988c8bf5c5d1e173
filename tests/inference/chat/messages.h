#pragma once

#include <memory>
#include <utility>

#include "formats/json/json.h"

// Messages as an API takes them.

namespace ingot::testing {

inline std::shared_ptr<const formats::Json> shared(formats::Json value) {
  return std::make_shared<const formats::Json>(std::move(value));
}

inline formats::Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

/// A call of a tool.
inline formats::Json call(const char* name, const formats::Json& arguments) {
  return {{"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

}  // namespace ingot::testing
