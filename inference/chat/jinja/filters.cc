#include "inference/chat/jinja/filters.h"

#include <utility>

namespace ingot::inference::jinja {

const FilterRow* find_filter(std::string_view name) {
  for (const auto rows : {text_filters(), sequence_filters(), selection_filters()}) {
    for (const FilterRow& row : rows) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

Value apply_filter(RenderState& state, const FilterRow& row, const Value& input,
                   Arguments&& arguments) {
  state.step();
  if (row.open != nullptr) return row.open(state, input, std::move(arguments));
  return row.bound(state, input, bind(state, row.name, row.signature, std::move(arguments)));
}

}  // namespace ingot::inference::jinja
