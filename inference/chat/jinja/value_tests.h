#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// `value is name` or `value is name(argument)`, as Jinja 3.1 has it.
struct TestRow {
  std::string_view name;
  std::size_t n_arguments = 0;
  bool (*passes)(RenderState& state, const Value& value,
                 const std::vector<Value>& arguments) = nullptr;
};

/// Null when there is none of that name.
const TestRow* find_test(std::string_view name);

/// A fault when the number of arguments is wrong.
bool apply_test(RenderState& state, const TestRow& row, const Value& value,
                const std::vector<Value>& arguments);

}  // namespace ingot::inference::jinja
