#include "inference/chat/jinja/attribute_path.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/members.h"

namespace ingot::inference::jinja {

AttributePath::AttributePath(RenderState& state, const Value& attribute) {
  if (!attribute.is(Kind::kText)) {
    if (!attribute.is(Kind::kInteger)) {
      state.fault(fmt::format("an attribute must be a string, not {}", type_name(attribute)));
    }
    steps_.push_back(attribute);
    return;
  }
  if (attribute.text().find(',') != std::string::npos) {
    state.unsupported("several attributes at once");
  }
  state.step(attribute.text().size());
  for (const std::string_view part : split_at(attribute.text(), ".", -1)) {
    const bool is_index = !part.empty() && std::all_of(part.begin(), part.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
    std::int64_t index = 0;
    if (!is_index) {
      steps_.push_back(state.text(part));
    } else if (std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc()) {
      steps_.push_back(Value::integer(index));
    } else {
      state.beyond("an index does not fit 64 bits");
    }
  }
}

Value AttributePath::of(RenderState& state, const Value& value) const {
  Value at = value;
  for (const Value& step : steps_) at = get_item(state, at, step);
  return at;
}

}  // namespace ingot::inference::jinja
