#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "inference/chat/jinja/operand.h"
#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

[[noreturn]] void overflow(const RenderState& state) {
  state.beyond("an integer does not fit 64 bits");
}

Value add(RenderState& state, const Value& left, const Value& right) {
  if (left.is(Kind::kText) && right.is(Kind::kText)) {
    return state.text(left.text() + right.text());
  }
  if (same_form(left, right) &&
      (is_list(left, Sequence::Form::kList) || is_list(left, Sequence::Form::kTuple))) {
    state.step(left.sequence().items.size() + right.sequence().items.size());
    std::vector<Value> items = left.sequence().items;
    items.insert(items.end(), right.sequence().items.begin(), right.sequence().items.end());
    return Value::sequence(state.sequence(left.sequence().form, std::move(items)));
  }
  if (is_whole(left) && is_whole(right)) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(whole(left), whole(right), &sum)) overflow(state);
    return Value::integer(sum);
  }
  if (is_number(left) && is_number(right)) return Value::real(real(left) + real(right));
  refuse_operands(state, "+", left, right);
}

Value subtract(RenderState& state, const Value& left, const Value& right) {
  if (is_whole(left) && is_whole(right)) {
    std::int64_t difference = 0;
    if (__builtin_sub_overflow(whole(left), whole(right), &difference)) overflow(state);
    return Value::integer(difference);
  }
  if (is_number(left) && is_number(right)) return Value::real(real(left) - real(right));
  if (is_list(left, Sequence::Form::kView) || is_list(right, Sequence::Form::kView)) {
    state.unsupported("the operator '-' of a view");
  }
  refuse_operands(state, "-", left, right);
}

Value repeat(RenderState& state, const Value& value, std::int64_t n) {
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
  const bool is_text = value.is(Kind::kText);
  const std::uint64_t size = is_text ? value.text().size() : value.sequence().items.size();
  std::uint64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total)) state.beyond("a repetition is too long");
  if (is_text) {
    state.charge(total);
    std::string text;
    text.reserve(total);
    for (std::uint64_t i = 0; total != 0 && i < times; ++i) text += value.text();
    return state.text(std::move(text));
  }
  state.step(total);
  std::vector<Value> items;
  for (std::uint64_t i = 0; total != 0 && i < times; ++i) {
    items.insert(items.end(), value.sequence().items.begin(), value.sequence().items.end());
  }
  return Value::sequence(state.sequence(value.sequence().form, std::move(items)));
}

bool can_repeat(const Value& value) {
  return value.is(Kind::kText) || is_list(value, Sequence::Form::kList) ||
         is_list(value, Sequence::Form::kTuple);
}

Value multiply(RenderState& state, const Value& left, const Value& right) {
  if (can_repeat(left) && is_whole(right)) return repeat(state, left, whole(right));
  if (can_repeat(right) && is_whole(left)) return repeat(state, right, whole(left));
  if (is_whole(left) && is_whole(right)) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(whole(left), whole(right), &product)) overflow(state);
    return Value::integer(product);
  }
  if (is_number(left) && is_number(right)) return Value::real(real(left) * real(right));
  refuse_operands(state, "*", left, right);
}

Value divide(RenderState& state, const Value& left, const Value& right) {
  if (!is_number(left) || !is_number(right)) refuse_operands(state, "/", left, right);
  if (real(right) == 0) state.fault("division by zero");
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  for (const Value* side : {&left, &right}) {
    if (is_whole(*side) && (whole(*side) > kExact || whole(*side) < -kExact)) {
      state.unsupported("the quotient of an integer beyond 2^53");
    }
  }
  return Value::real(real(left) / real(right));
}

struct Quotient {
  double quotient, remainder;
};

// As CPython: the remainder has the sign of the divisor, and the quotient is what belongs to it.
Quotient divide_floored(double left, double right) {
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0) {
    if ((right < 0) != (remainder < 0)) {
      remainder += right;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, right);
  }
  if (quotient == 0) return {.quotient = std::copysign(0.0, left / right), .remainder = remainder};
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return {.quotient = floored, .remainder = remainder};
}

Value divide_down(RenderState& state, bool wants_remainder, const Value& left, const Value& right) {
  if (wants_remainder && left.is(Kind::kText)) {
    state.unsupported("the operator '%' of a string (use '~' or .format)");
  }
  if (!is_number(left) || !is_number(right)) {
    refuse_operands(state, wants_remainder ? "%" : "//", left, right);
  }
  if (real(right) == 0) state.fault("division by zero");
  if (!is_whole(left) || !is_whole(right)) {
    const Quotient result = divide_floored(real(left), real(right));
    return Value::real(wants_remainder ? result.remainder : result.quotient);
  }
  const std::int64_t a = whole(left);
  const std::int64_t b = whole(right);
  if (b == -1) return wants_remainder ? Value::integer(0) : negate(state, left);
  const std::int64_t remainder = a % b;
  const bool below = remainder != 0 && (remainder < 0) != (b < 0);
  if (wants_remainder) return Value::integer(below ? remainder + b : remainder);
  return Value::integer(a / b - (below ? 1 : 0));
}

}  // namespace

Value binary_operation(RenderState& state, BinaryOperator op, const Value& left,
                       const Value& right) {
  switch (op) {
    case BinaryOperator::kAdd:
      return add(state, left, right);
    case BinaryOperator::kSubtract:
      return subtract(state, left, right);
    case BinaryOperator::kMultiply:
      return multiply(state, left, right);
    case BinaryOperator::kDivide:
      return divide(state, left, right);
    case BinaryOperator::kFloorDivide:
      return divide_down(state, false, left, right);
    case BinaryOperator::kModulo:
      return divide_down(state, true, left, right);
    case BinaryOperator::kAnd:
      return truth(left) ? right : left;
    case BinaryOperator::kOr:
      break;
  }
  return truth(left) ? left : right;
}

Value negate(RenderState& state, const Value& operand) {
  if (operand.is(Kind::kFloat)) return Value::real(-operand.real());
  if (!is_whole(operand)) {
    state.fault(fmt::format("minus {} is not possible", type_name(operand)));
  }
  std::int64_t result = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, whole(operand), &result)) overflow(state);
  return Value::integer(result);
}

}  // namespace ingot::inference::jinja
