#include "inference/chat/jinja/operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference::jinja {
namespace {

using Form = Sequence::Form;

// long double holds every 64-bit integer and every double, so comparisons are exact.
long double exact(const Value& value) {
  return value.is(Kind::kFloat) ? static_cast<long double>(value.real())
                                : static_cast<long double>(whole(value));
}

// The fault of `left sign right`, which says when one of them is undefined.
[[noreturn]] void refuse_operands(const RenderState& state, std::string_view sign,
                                  const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::kUndefined) && side->undefined_name().name) {
      state.fault("'{}' is undefined", *side->undefined_name().name);
    }
  }
  state.fault("{} {} {} is not possible", type_name(left), sign, type_name(right));
}

std::string_view sign_of(Operator op) {
  // From kConcatenate on, in the order of Operator.
  static constexpr std::array<std::string_view, 7> kSigns = {"~", "+", "-", "*", "/", "//", "%"};
  return kSigns.at(static_cast<std::size_t>(op) - static_cast<std::size_t>(Operator::kConcatenate));
}

Value whole_arithmetic(const RenderState& state, Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (op == Operator::kAdd) {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (op == Operator::kSubtract) {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (op == Operator::kMultiply) {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (b == -1) {  // apart, because the smallest integer has no opposite
    if (op == Operator::kFloorDivide) overflows = __builtin_sub_overflow(0, a, &result);
  } else {
    // Python rounds down, so the remainder has the sign of the divisor.
    const std::int64_t remainder = a % b;
    const bool rounds = remainder != 0 && (remainder < 0) != (b < 0);
    result = op == Operator::kModulo ? remainder + (rounds ? b : 0) : a / b - (rounds ? 1 : 0);
  }
  if (overflows) state.beyond("an integer does not fit 64 bits");
  return Value::integer(result);
}

double real_arithmetic(Operator op, double a, double b) {
  if (op == Operator::kAdd) return a + b;
  if (op == Operator::kSubtract) return a - b;
  if (op == Operator::kMultiply) return a * b;
  if (op == Operator::kDivide) return a / b;
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return op == Operator::kModulo ? remainder : std::round((a - remainder) / b);
}

Value repeat(RenderState& state, const Value& value, std::int64_t n) {
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
  const bool is_text = value.is(Kind::kText);
  const std::uint64_t size = is_text ? value.text().size() : value.sequence().items.size();
  std::uint64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total)) state.beyond("a repetition is too long");
  std::string text;
  std::vector<Value> items;
  if (is_text) {
    state.charge(total);
    text.reserve(total);
    while (text.size() < total) text += value.text();
    return Value::text(std::move(text));
  }
  state.step(total);
  const auto& once = value.sequence().items;
  state.reserve(items, total);
  while (items.size() < total) items.insert(items.end(), once.begin(), once.end());
  return state.sequence(value.sequence().form, std::move(items));
}

Value arithmetic(RenderState& state, Operator op, const Value& left, const Value& right) {
  const auto repeats = [](const Value& a, const Value& b) {
    return (a.is(Kind::kText) || is_list_or_tuple(a)) && is_whole(b);
  };
  if (op == Operator::kAdd && left.is(Kind::kText) && right.is(Kind::kText)) {
    return state.joined(left.text(), right.text());
  }
  if (op == Operator::kAdd && is_list_or_tuple(left) && is_form(right, left.sequence().form)) {
    std::vector<Value> items;
    const auto& first = left.sequence().items;
    const auto& more = right.sequence().items;
    state.step(first.size() + more.size());
    state.reserve(items, first.size() + more.size());
    items.insert(items.end(), first.begin(), first.end());
    items.insert(items.end(), more.begin(), more.end());
    return state.sequence(left.sequence().form, std::move(items));
  }
  if (op == Operator::kMultiply && repeats(left, right)) return repeat(state, left, whole(right));
  if (op == Operator::kMultiply && repeats(right, left)) return repeat(state, right, whole(left));
  if (op == Operator::kModulo && left.is(Kind::kText)) {
    state.unsupported("the operator '%' of a string (use '~')");
  }
  if (op == Operator::kSubtract && (is_form(left, Form::kView) || is_form(right, Form::kView))) {
    state.unsupported("the operator '-' of a view");
  }
  if (!is_number(left) || !is_number(right)) refuse_operands(state, sign_of(op), left, right);
  if (op >= Operator::kDivide && real(right) == 0) state.fault("division by zero");
  if (is_whole(left) && is_whole(right) && op != Operator::kDivide) {
    return whole_arithmetic(state, op, whole(left), whole(right));
  }
  return Value::real(real_arithmetic(op, real(left), real(right)));
}

Value concatenate(RenderState& state, const Value& left, const Value& right) {
  const std::string text = to_text(state, left);
  return state.joined(text, to_text(state, right));
}

bool equal_mappings(RenderState& state, const Mapping& left, const Mapping& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
    const Value* other = find_entry(state, right, entry.first);
    return other != nullptr && equal(state, entry.second, *other);
  });
}

void require_key(const RenderState& state, const Value& key) {
  const bool can = key.is(Kind::kText) || key.is(Kind::kNone) || key.is(Kind::kUndefined) ||
                   is_number(key) || is_form(key, Form::kTuple);
  if (!can) state.fault("a {} cannot be a key", type_name(key));
}

}  // namespace

bool truth(const Value& value) {
  if (value.is(Kind::kUndefined) || value.is(Kind::kNone)) return false;
  if (is_number(value)) return real(value) != 0;
  if (value.is(Kind::kText)) return !value.text().empty();
  // An iterator has no length to ask for, so Python takes it for true.
  if (is_form(value, Form::kIterator)) return true;
  if (value.is(Kind::kSequence)) return !value.sequence().items.empty();
  return !value.is(Kind::kMapping) || !value.mapping().entries.empty();
}

std::string_view type_name(const Value& value) {
  // In the order of Kind, then in the order of Sequence::Form.
  static constexpr std::array<std::string_view, 11> kNames = {
      "undefined", "none",    "boolean",   "integer", "float",   "string",
      "list",      "mapping", "namespace", "loop",    "function"};
  static constexpr std::array<std::string_view, 5> kForms = {"list", "tuple", "range", "view",
                                                             "iterator"};
  return value.is(Kind::kSequence) ? kForms.at(static_cast<std::size_t>(value.sequence().form))
                                   : kNames.at(static_cast<std::size_t>(value.kind()));
}

std::int64_t as_integer(const RenderState& state, const Value& value, std::string_view what) {
  if (is_whole(value)) return whole(value);
  state.fault("{} must be an integer, not {}", what, type_name(value));
}

const std::string& as_text(const RenderState& state, const Value& value, std::string_view what) {
  if (value.is(Kind::kText)) return value.text();
  state.fault("{} must be a string, not {}", what, type_name(value));
}

Value binary_operation(RenderState& state, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kOr:
      return truth(left) ? left : right;
    case Operator::kAnd:
      return truth(left) ? right : left;
    case Operator::kConcatenate:
      return concatenate(state, left, right);
    case Operator::kEqual:
    case Operator::kNotEqual:
      return Value::boolean(equal(state, left, right) == (op == Operator::kEqual));
    case Operator::kLess:
      return Value::boolean(less(state, left, right));
    case Operator::kLessEqual:
      return Value::boolean(less(state, left, right) || equal(state, left, right));
    case Operator::kGreater:
      return Value::boolean(less(state, right, left));
    case Operator::kGreaterEqual:
      return Value::boolean(less(state, right, left) || equal(state, left, right));
    case Operator::kIn:
    case Operator::kNotIn:
      return Value::boolean(contains(state, right, left) == (op == Operator::kIn));
    default:
      return arithmetic(state, op, left, right);
  }
}

Value negate(const RenderState& state, const Value& operand) {
  if (operand.is(Kind::kFloat)) return Value::real(-operand.real());
  if (is_whole(operand)) return whole_arithmetic(state, Operator::kSubtract, 0, whole(operand));
  state.fault("minus {} is not possible", type_name(operand));
}

bool equal(RenderState& state, const Value& left, const Value& right) {
  const Nesting nesting = state.deeper();
  state.step();
  if (is_number(left) && is_number(right)) return exact(left) == exact(right);
  if (left.kind() != right.kind()) return false;
  if (left.is(Kind::kUndefined) || left.is_same_object(right)) return true;
  if (left.is(Kind::kText)) {
    state.scan(std::min(left.text().size(), right.text().size()));
    return left.text() == right.text();
  }
  if (left.is(Kind::kSequence)) {
    const auto& items = left.sequence().items;
    const auto& others = right.sequence().items;
    return is_form(right, left.sequence().form) &&
           std::equal(items.begin(), items.end(), others.begin(), others.end(),
                      [&](const Value& a, const Value& b) { return equal(state, a, b); });
  }
  if (left.is(Kind::kMapping)) return equal_mappings(state, left.mapping(), right.mapping());
  return left.is(Kind::kNone);
}

bool less(RenderState& state, const Value& left, const Value& right) {
  const Nesting nesting = state.deeper();
  state.step();
  if (is_number(left) && is_number(right)) return exact(left) < exact(right);
  if (left.is(Kind::kText) && right.is(Kind::kText)) {
    state.scan(std::min(left.text().size(), right.text().size()));
    // The order of UTF-8 bytes, compared as unsigned char, is the order of code points.
    return left.text() < right.text();
  }
  if (is_list_or_tuple(left) && is_form(right, left.sequence().form)) {
    const auto& a = left.sequence().items;
    const auto& b = right.sequence().items;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
      if (!equal(state, a[i], b[i])) return less(state, a[i], b[i]);
    }
    return a.size() < b.size();
  }
  refuse_operands(state, "<", left, right);
}

bool contains(RenderState& state, const Value& haystack, const Value& needle) {
  if (haystack.is(Kind::kMapping)) {
    return find_entry(state, haystack.mapping(), needle) != nullptr;
  }
  if (haystack.is(Kind::kText) && needle.is(Kind::kText)) {
    state.scan(haystack.text().size());
    return find_text(haystack.text(), needle.text()) != std::string::npos;
  }
  if (!haystack.is(Kind::kSequence) && !haystack.is(Kind::kUndefined)) {
    refuse_operands(state, "in", needle, haystack);
  }
  const std::vector<Value> items = elements(state, haystack);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(state, item, needle); });
}

const Value* find_entry(RenderState& state, const Mapping& mapping, const Value& key) {
  if (key.is(Kind::kText)) return find_entry(state, mapping, key.text());
  require_key(state, key);
  for (const auto& [name, value] : mapping.entries) {
    if (equal(state, name, key)) return &value;
  }
  return nullptr;
}

const Value* find_entry(RenderState& state, const Mapping& mapping, std::string_view key) {
  for (const auto& [name, value] : mapping.entries) {
    state.step();
    if (name.is(Kind::kText) && name.text() == key) return &value;
  }
  return nullptr;
}

void set_entry(RenderState& state, Mapping& mapping, const Value& key, const Value& value) {
  require_key(state, key);
  for (auto& [name, old] : mapping.entries) {
    if (!equal(state, name, key)) continue;
    old = value;
    return;
  }
  state.push(mapping.entries, std::pair(key, value));
}

std::vector<Value> elements(RenderState& state, const Value& value) {
  std::vector<Value> items;
  if (value.is(Kind::kText)) {
    state.step(value.text().size());
    for (std::string_view text = value.text(); !text.empty();) {
      const std::size_t n = code_point_at(text, 0).n_bytes;
      state.push(items, state.text(text.substr(0, n)));
      text.remove_prefix(n);
    }
  } else if (value.is(Kind::kSequence)) {
    Sequence& sequence = value.sequence();
    state.step(sequence.items.size());
    if (sequence.form == Form::kIterator) return std::exchange(sequence.items, {});
    state.reserve(items, sequence.items.size());
    items = sequence.items;
  } else if (value.is(Kind::kMapping)) {
    state.step(value.mapping().entries.size());
    state.reserve(items, value.mapping().entries.size());
    for (const auto& entry : value.mapping().entries) items.push_back(entry.first);
  } else if (!value.is(Kind::kUndefined)) {
    state.fault("a {} cannot be iterated", type_name(value));
  }
  return items;
}

}  // namespace ingot::inference::jinja
