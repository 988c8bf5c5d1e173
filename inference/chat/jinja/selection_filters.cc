#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/attribute_path.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/value_tests.h"

namespace ingot::inference::jinja {
namespace {

Value map_attribute(RenderState& state, const Value& input, Arguments&& arguments) {
  static constexpr Signature kSignature = {.names = {"attribute", "default"}, .n_required = 1};
  const Bound bound = bind(state, "map", kSignature, std::move(arguments));
  const AttributePath path(state, *bound[0]);
  const bool has_default = bound[1] && !bound[1]->is(Kind::kNone);
  std::vector<Value> mapped;
  for (const Value& item : elements(state, input)) {
    Value value = path.of(state, item);
    if (has_default && value.is(Kind::kUndefined)) value = *bound[1];
    mapped.push_back(std::move(value));
  }
  return state.iterator(std::move(mapped));
}

Value map(RenderState& state, const Value& input, Arguments&& arguments) {
  if (arguments.positional.empty()) return map_attribute(state, input, std::move(arguments));
  const std::string name = as_string(state, arguments.positional[0], "the filter of 'map'");
  const FilterRow* row = find_filter(name);
  if (row == nullptr) state.unsupported(fmt::format("the filter '{}'", name));
  arguments.positional.erase(arguments.positional.begin());
  const RenderState::Depth depth(state);
  std::vector<Value> mapped;
  for (const Value& item : elements(state, input)) {
    mapped.push_back(apply_filter(state, *row, item, Arguments(arguments)));
  }
  return state.iterator(std::move(mapped));
}

template <bool kKeeps, bool kByAttribute>
Value select(RenderState& state, const Value& input, Arguments&& arguments) {
  if (!arguments.named.empty()) state.unsupported("a named argument of a test");
  auto& given = arguments.positional;
  std::optional<AttributePath> path;
  if (kByAttribute) {
    if (given.empty()) state.fault("the attribute to select by is missing");
    path.emplace(state, given.front());
    given.erase(given.begin());
  }
  const TestRow* row = nullptr;
  if (!given.empty()) {
    const std::string name = as_string(state, given.front(), "the name of a test");
    row = find_test(name);
    if (row == nullptr) state.unsupported(fmt::format("the test '{}'", name));
    given.erase(given.begin());
  }
  std::vector<Value> kept;
  for (const Value& item : elements(state, input)) {
    const Value value = path ? path->of(state, item) : item;
    const bool passes = row == nullptr ? truth(value) : apply_test(state, *row, value, given);
    if (passes == kKeeps) kept.push_back(item);
  }
  return state.iterator(std::move(kept));
}

constexpr std::array kRows = {
    FilterRow{.name = "map", .open = map},
    FilterRow{.name = "select", .open = select<true, false>},
    FilterRow{.name = "reject", .open = select<false, false>},
    FilterRow{.name = "selectattr", .open = select<true, true>},
    FilterRow{.name = "rejectattr", .open = select<false, true>},
};

}  // namespace

std::span<const FilterRow> selection_filters() {
  return kRows;
}

}  // namespace ingot::inference::jinja
