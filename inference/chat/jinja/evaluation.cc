#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/callable.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/globals.h"
#include "inference/chat/jinja/interpreter.h"
#include "inference/chat/jinja/members.h"
#include "inference/chat/jinja/methods.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/text_form.h"
#include "inference/chat/jinja/value_tests.h"

namespace ingot::inference::jinja {

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  const RenderState::Depth depth(state_);
  state_.step();
  state_.at_line(expression.line);
  return std::visit([&](const auto& node) { return evaluate_node(node, scope); }, expression.node);
}

Value Interpreter::evaluate_node(const Literal& literal, Scope& /*scope*/) {
  return literal.value;
}

Value Interpreter::evaluate_node(const Name& name, Scope& scope) {
  if (const Value* found = scope.find(name.name)) return *found;
  static constexpr std::array<std::string_view, 4> kOfMacros = {"caller", "varargs", "kwargs",
                                                                "self"};
  if (std::find(kOfMacros.begin(), kOfMacros.end(), name.name) != kOfMacros.end()) {
    state_.unsupported(fmt::format("the variable '{}'", name.name));
  }
  return find_global(state_, name.name);
}

Value Interpreter::evaluate_node(const ListDisplay& list, Scope& scope) {
  std::vector<Value> items;
  items.reserve(list.items.size());
  for (const ExpressionPtr& item : list.items) items.push_back(evaluate(*item, scope));
  return list.is_tuple ? state_.tuple(std::move(items)) : state_.list(std::move(items));
}

Value Interpreter::evaluate_node(const DictDisplay& dict, Scope& scope) {
  Mapping& mapping = state_.make<Mapping>();
  for (const auto& [key, value] : dict.entries) {
    const Value made_key = evaluate(*key, scope);
    set_entry(state_, mapping, made_key, evaluate(*value, scope));
  }
  return Value::mapping(mapping);
}

Value Interpreter::evaluate_node(const Unary& unary, Scope& scope) {
  const Value operand = evaluate(*unary.operand, scope);
  switch (unary.op) {
    case UnaryOperator::kNot:
      return Value::boolean(!truth(operand));
    case UnaryOperator::kMinus:
      return negate(state_, operand);
    case UnaryOperator::kPlus:
      break;
  }
  // Python's + of a number is the number, of a boolean an integer, of anything else refused.
  return operand.is(Kind::kFloat)
             ? operand
             : binary_operation(state_, BinaryOperator::kAdd, Value::integer(0), operand);
}

Value Interpreter::evaluate_node(const Binary& binary, Scope& scope) {
  const std::uint32_t line = state_.line();
  const Value left = evaluate(*binary.left, scope);
  if (binary.op == BinaryOperator::kAnd && !truth(left)) return left;
  if (binary.op == BinaryOperator::kOr && truth(left)) return left;
  const Value right = evaluate(*binary.right, scope);
  state_.at_line(line);
  return binary_operation(state_, binary.op, left, right);
}

Value Interpreter::evaluate_node(const Comparison& comparison, Scope& scope) {
  Value left = evaluate(*comparison.first, scope);
  for (const auto& [relation, expression] : comparison.rest) {
    Value right = evaluate(*expression, scope);
    if (!related(state_, relation, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_node(const Concatenation& concatenation, Scope& scope) {
  std::string text;
  for (const ExpressionPtr& part : concatenation.parts) {
    const Value value = evaluate(*part, scope);
    state_.scan(text.size());
    text += to_text(state_, value);
  }
  return state_.text(std::move(text));
}

Value Interpreter::evaluate_node(const Conditional& conditional, Scope& scope) {
  if (truth(evaluate(*conditional.condition, scope))) return evaluate(*conditional.then, scope);
  if (conditional.otherwise) return evaluate(*conditional.otherwise, scope);
  return Value::undefined("the other side of an 'if' without 'else'");
}

Value Interpreter::evaluate_node(const Attribute& attribute, Scope& scope) {
  const std::uint32_t line = state_.line();
  const Value object = evaluate(*attribute.object, scope);
  state_.at_line(line);
  return get_attribute(state_, object, attribute.name);
}

Value Interpreter::evaluate_node(const Item& item, Scope& scope) {
  const std::uint32_t line = state_.line();
  const Value object = evaluate(*item.object, scope);
  const Value index = evaluate(*item.index, scope);
  state_.at_line(line);
  return get_item(state_, object, index);
}

Value Interpreter::evaluate_node(const Slice& slice, Scope& scope) {
  const Value object = evaluate(*slice.object, scope);
  const auto bound = [&](const ExpressionPtr& expression) -> std::optional<std::int64_t> {
    if (!expression) return std::nullopt;
    const Value value = evaluate(*expression, scope);
    if (value.is(Kind::kNone)) return std::nullopt;
    return as_integer(state_, value, "a bound of a slice");
  };
  SliceBounds bounds;
  bounds.start = bound(slice.start);
  bounds.stop = bound(slice.stop);
  bounds.step = bound(slice.step);
  return get_slice(state_, object, bounds);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, Scope& scope) {
  Arguments given;
  for (const ExpressionPtr& value : arguments.positional) {
    given.positional.push_back(evaluate(*value, scope));
  }
  for (const auto& [name, value] : arguments.named) {
    given.named.emplace_back(name, evaluate(*value, scope));
  }
  return given;
}

Value Interpreter::evaluate_node(const Call& call, Scope& scope) {
  const std::uint32_t line = state_.line();
  // The common case, a method of a value, without an object for the method.
  if (const auto* attribute = std::get_if<Attribute>(&call.callee->node)) {
    const Value object = evaluate(*attribute->object, scope);
    state_.at_line(line);
    if (const MethodRow* method = find_method(state_, object, attribute->name)) {
      Arguments arguments = evaluate_arguments(call.arguments, scope);
      state_.at_line(line);
      return call_method(state_, *method, object, std::move(arguments));
    }
    return this->call(get_attribute(state_, object, attribute->name), call, scope);
  }
  return this->call(evaluate(*call.callee, scope), call, scope);
}

Value Interpreter::call(const Value& callee, const Call& call, Scope& scope) {
  const std::uint32_t line = call.callee->line;
  Arguments arguments = evaluate_arguments(call.arguments, scope);
  state_.at_line(line);
  if (callee.is(Kind::kCallable)) return callee.callable().call(state_, std::move(arguments));
  if (callee.is(Kind::kUndefined) && callee.undefined_name().name) {
    state_.fault(
        fmt::format("'{}' is undefined, so it cannot be called", *callee.undefined_name().name));
  }
  state_.fault(fmt::format("a {} cannot be called", type_name(callee)));
}

Value Interpreter::evaluate_node(const Filter& filter, Scope& scope) {
  const std::uint32_t line = state_.line();
  const Value input = evaluate(*filter.input, scope);
  Arguments arguments = evaluate_arguments(filter.arguments, scope);
  state_.at_line(line);
  return apply_filter(state_, *filter.row, input, std::move(arguments));
}

Value Interpreter::evaluate_node(const Test& test, Scope& scope) {
  const std::uint32_t line = state_.line();
  const Value input = evaluate(*test.input, scope);
  std::vector<Value> arguments;
  for (const ExpressionPtr& argument : test.arguments) {
    arguments.push_back(evaluate(*argument, scope));
  }
  state_.at_line(line);
  return Value::boolean(apply_test(state_, *test.row, input, arguments) != test.negated);
}

}  // namespace ingot::inference::jinja
