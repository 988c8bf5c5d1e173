#include "inference/chat/jinja/callable.h"

#include <fmt/format.h>

namespace ingot::inference::jinja {

Value Callable::attribute(RenderState& state, std::string_view name) {
  state.unsupported(fmt::format("the attribute '{}' of a function", name));
}

}  // namespace ingot::inference::jinja
