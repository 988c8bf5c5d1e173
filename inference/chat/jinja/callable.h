#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "inference/chat/jinja/arguments.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// What a template may call: a macro, a method of a value, a global function.
class Callable : public Object {
 public:
  virtual Value call(RenderState& state, Arguments&& arguments) = 0;
  /// Undefined, unless it has an attribute of this name.
  virtual Value attribute(RenderState& state, std::string_view name);
};

/// A built-in function.
class Function final : public Callable {
 public:
  using Body = Value (*)(RenderState& state, Arguments&& arguments);

  explicit Function(Body body) : body_(body) {}
  Value call(RenderState& state, Arguments&& arguments) override {
    return body_(state, std::move(arguments));
  }

 private:
  Body body_;
};

}  // namespace ingot::inference::jinja
