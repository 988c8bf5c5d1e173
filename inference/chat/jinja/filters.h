#pragma once

#include <span>
#include <string_view>

#include "inference/chat/jinja/arguments.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// `input | name(arguments)`, as Jinja 3.1 has it; tojson as transformers has it. `bound` is used
/// unless `open` is set, which takes the arguments as they come.
struct FilterRow {
  std::string_view name;
  Signature signature;
  Value (*bound)(RenderState& state, const Value& input, const Bound& arguments) = nullptr;
  Value (*open)(RenderState& state, const Value& input, Arguments&& arguments) = nullptr;
};

/// Null when there is none of that name.
const FilterRow* find_filter(std::string_view name);

Value apply_filter(RenderState& state, const FilterRow& row, const Value& input,
                   Arguments&& arguments);

/// By what they work on: text and single values, whole sequences, elements chosen by a test.
std::span<const FilterRow> text_filters();
std::span<const FilterRow> sequence_filters();
std::span<const FilterRow> selection_filters();

}  // namespace ingot::inference::jinja
