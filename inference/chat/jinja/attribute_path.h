#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// The `attribute=` of filters: "a.b.0" is value['a']['b'][0]; an integer is an index.
class AttributePath {
 public:
  AttributePath(RenderState& state, const Value& attribute);
  [[nodiscard]] Value of(RenderState& state, const Value& value) const;

 private:
  std::vector<Value> steps_;
};

}  // namespace ingot::inference::jinja
