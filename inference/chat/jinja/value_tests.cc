#include "inference/chat/jinja/value_tests.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

using Given = std::vector<Value>;

template <Kind kKind>
bool is_kind(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  return value.is(kKind);
}

bool is_defined(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  return !value.is(Kind::kUndefined);
}

// In Python a boolean is a number.
bool is_number(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  return value.is(Kind::kInteger) || value.is(Kind::kFloat) || value.is(Kind::kBoolean);
}

template <bool kWanted>
bool is_boolean(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  return value.is(Kind::kBoolean) && value.boolean() == kWanted;
}

bool is_iterable(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  return value.is(Kind::kText) || value.is(Kind::kSequence) || value.is(Kind::kMapping) ||
         value.is(Kind::kUndefined) || value.is(Kind::kLoop);
}

// What has a length and can be indexed: mappings too, and undefined.
bool is_sequence(RenderState& /*state*/, const Value& value, const Given& /*arguments*/) {
  if (value.is(Kind::kSequence)) {
    const Sequence::Form form = value.sequence().form;
    return form != Sequence::Form::kView && form != Sequence::Form::kIterator;
  }
  return value.is(Kind::kText) || value.is(Kind::kMapping) || value.is(Kind::kUndefined);
}

template <bool kOdd>
bool has_parity(RenderState& state, const Value& value, const Given& arguments) {
  if (!is_number(state, value, arguments)) {
    state.fault(fmt::format("a {} is neither odd nor even", type_name(value)));
  }
  const Value rest = binary_operation(state, BinaryOperator::kModulo, value, Value::integer(2));
  return equal(state, rest, Value::integer(kOdd ? 1 : 0));
}

bool is_equal(RenderState& state, const Value& value, const Given& arguments) {
  return equal(state, value, arguments[0]);
}

bool is_unequal(RenderState& state, const Value& value, const Given& arguments) {
  return !equal(state, value, arguments[0]);
}

bool is_in(RenderState& state, const Value& value, const Given& arguments) {
  return contains(state, arguments[0], value);
}

constexpr std::array kRows = {
    TestRow{.name = "defined", .passes = is_defined},
    TestRow{.name = "undefined", .passes = is_kind<Kind::kUndefined>},
    TestRow{.name = "none", .passes = is_kind<Kind::kNone>},
    TestRow{.name = "string", .passes = is_kind<Kind::kText>},
    TestRow{.name = "number", .passes = is_number},
    TestRow{.name = "integer", .passes = is_kind<Kind::kInteger>},
    TestRow{.name = "float", .passes = is_kind<Kind::kFloat>},
    TestRow{.name = "boolean", .passes = is_kind<Kind::kBoolean>},
    TestRow{.name = "true", .passes = is_boolean<true>},
    TestRow{.name = "false", .passes = is_boolean<false>},
    TestRow{.name = "mapping", .passes = is_kind<Kind::kMapping>},
    TestRow{.name = "sequence", .passes = is_sequence},
    TestRow{.name = "iterable", .passes = is_iterable},
    TestRow{.name = "odd", .passes = has_parity<true>},
    TestRow{.name = "even", .passes = has_parity<false>},
    TestRow{.name = "equalto", .n_arguments = 1, .passes = is_equal},
    TestRow{.name = "eq", .n_arguments = 1, .passes = is_equal},
    TestRow{.name = "==", .n_arguments = 1, .passes = is_equal},
    TestRow{.name = "ne", .n_arguments = 1, .passes = is_unequal},
    TestRow{.name = "!=", .n_arguments = 1, .passes = is_unequal},
    TestRow{.name = "in", .n_arguments = 1, .passes = is_in},
};

}  // namespace

const TestRow* find_test(std::string_view name) {
  const auto* const found = std::find_if(kRows.begin(), kRows.end(),
                                         [&](const TestRow& row) { return row.name == name; });
  return found == kRows.end() ? nullptr : &*found;
}

bool apply_test(RenderState& state, const TestRow& row, const Value& value,
                const std::vector<Value>& arguments) {
  state.step();
  if (arguments.size() != row.n_arguments) {
    state.fault(fmt::format("the test '{}' takes {} arguments, not {}", row.name, row.n_arguments,
                            arguments.size()));
  }
  return row.passes(state, value, arguments);
}

}  // namespace ingot::inference::jinja
