#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>

#include "formats/base/error.h"
#include "inference/chat/jinja/syntax.h"

// Expressions, with the precedence that Jinja gives its operators: a filter binds tighter than any
// of them, `~` tighter than `+`.

namespace ingot::inference::jinja {
namespace {

// Operators with two operands. A higher level binds tighter; `not` is below kComparison.
enum class Level : std::uint8_t { kOr, kAnd, kComparison, kSum, kConcatenation, kProduct };
struct BinaryRow {
  std::string_view text;
  Level level;
  Operator op;
};
constexpr std::array kBinary = {
    BinaryRow{"or", Level::kOr, Operator::kOr},
    BinaryRow{"and", Level::kAnd, Operator::kAnd},
    BinaryRow{"==", Level::kComparison, Operator::kEqual},
    BinaryRow{"!=", Level::kComparison, Operator::kNotEqual},
    BinaryRow{"<", Level::kComparison, Operator::kLess},
    BinaryRow{"<=", Level::kComparison, Operator::kLessEqual},
    BinaryRow{">", Level::kComparison, Operator::kGreater},
    BinaryRow{">=", Level::kComparison, Operator::kGreaterEqual},
    BinaryRow{"in", Level::kComparison, Operator::kIn},
    BinaryRow{"not", Level::kComparison, Operator::kNotIn},
    BinaryRow{"+", Level::kSum, Operator::kAdd},
    BinaryRow{"-", Level::kSum, Operator::kSubtract},
    BinaryRow{"~", Level::kConcatenation, Operator::kConcatenate},
    BinaryRow{"*", Level::kProduct, Operator::kMultiply},
    BinaryRow{"/", Level::kProduct, Operator::kDivide},
    BinaryRow{"//", Level::kProduct, Operator::kFloorDivide},
    BinaryRow{"%", Level::kProduct, Operator::kModulo},
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;

  [[nodiscard]] Arguments evaluated(RenderState& state, Scope& scope) const {
    Arguments given;
    for (const ExpressionPtr value : positional) {
      state.push(given.positional, value->evaluate(state, scope));
    }
    for (const auto& [name, value] : named) {
      state.charge(name.size());
      state.push(given.named, std::pair<std::string, Value>(name, value->evaluate(state, scope)));
    }
    return given;
  }
};

Value variable(RenderState& state, const Scope& scope, std::string_view name) {
  if (const Value* found = scope.find(name)) return *found;
  if (const Builtin* function = find_builtin(functions(), name)) return state.callable(*function);
  // Jinja defines these names, so an undefined value would be wrong.
  static constexpr std::array<std::string_view, 7> kAbsent = {"caller", "varargs", "kwargs", "self",
                                                              "lipsum", "cycler",  "joiner"};
  if (std::find(kAbsent.begin(), kAbsent.end(), name) != kAbsent.end()) {
    state.unsupported("the variable '{}'", name);
  }
  return state.undefined(name);
}

// The text of its body, in a scope of its own within that of the template.
Value call_macro(RenderState& state, const Macro& macro, Arguments arguments) {
  const Nesting nesting = state.deeper();
  std::vector<std::string_view> names;
  state.reserve(names, macro.parameters.size());
  for (const auto& parameter : macro.parameters) names.push_back(parameter.first);
  bind(state, macro.name, {names, 0}, arguments);
  Scope scope(&state.globals);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Value value = std::move(arguments.positional[i]);
    if (value.is_absent()) {
      const ExpressionPtr otherwise = macro.parameters[i].second;
      value = otherwise != nullptr ? otherwise->evaluate(state, scope) : state.undefined(names[i]);
    }
    state.set(scope, names[i], std::move(value));
  }
  return captured(macro.body, state, scope);
}

Value call_value(RenderState& state, const Value& callee, Arguments arguments) {
  if (callee.is(Kind::kCallable)) {
    const Callable& callable = callee.callable();
    if (callable.macro != nullptr) return call_macro(state, *callable.macro, std::move(arguments));
    return call_builtin(state, *callable.builtin, callable.self, std::move(arguments));
  }
  if (callee.is(Kind::kUndefined) && callee.undefined_name().name) {
    state.fault("'{}' is undefined, so it cannot be called", *callee.undefined_name().name);
  }
  state.fault("a {} cannot be called", type_name(callee));
}

class Grammar {
 public:
  explicit Grammar(Parsing& parsing) : parsing_(parsing), in_(parsing.in) {}

  ExpressionPtr expression() {
    const Nesting nesting = parsing_.deeper();
    const std::uint32_t first_line = in_.line();
    ExpressionPtr then = binary(Level::kOr);
    while (in_.skip("if")) {
      ExpressionPtr condition = binary(Level::kOr);
      ExpressionPtr otherwise = in_.skip("else") ? expression() : nullptr;
      then = make(first_line, [=](RenderState& state, Scope& scope) {
        if (truth(condition->evaluate(state, scope))) return then->evaluate(state, scope);
        if (otherwise != nullptr) return otherwise->evaluate(state, scope);
        return state.undefined("the other side of an 'if' without 'else'");
      });
    }
    return then;
  }

  ExpressionPtr tuple(bool conditionals) {
    const std::uint32_t first_line = in_.line();
    std::vector<ExpressionPtr> items;
    bool has_comma = false;
    while (!is_one_of(in_.current(), {"%}", "}}", ")", "in"})) {
      items.push_back(conditionals ? expression() : binary(Level::kOr));
      if (!in_.skip(",")) break;
      has_comma = true;
    }
    if (has_comma) return display(first_line, Sequence::Form::kTuple, std::move(items));
    if (items.empty()) in_.fail_expected("an expression");
    return items.front();
  }

  ExpressionPtr filters(ExpressionPtr input) {
    while (in_.at("|")) input = filter(input);
    return input;
  }

  ExpressionPtr name(std::uint32_t line, std::string name) {
    return make(line, [name = std::move(name)](RenderState& state, Scope& scope) {
      return variable(state, scope, name);
    });
  }

 private:
  template <typename Run>
  ExpressionPtr make(std::uint32_t line, Run run) {
    return &parsing_.expressions.emplace_back(Expression{.run = std::move(run), .line = line});
  }

  ExpressionPtr literal(std::uint32_t line, Value value) {
    return make(line, [value = std::move(value)](RenderState&, Scope&) { return value; });
  }

  ExpressionPtr display(std::uint32_t line, Sequence::Form form, std::vector<ExpressionPtr> items) {
    return make(line, [form, items = std::move(items)](RenderState& state, Scope& scope) {
      std::vector<Value> values;
      state.reserve(values, items.size());
      for (const ExpressionPtr item : items) values.push_back(item->evaluate(state, scope));
      return state.sequence(form, std::move(values));
    });
  }

  ExpressionPtr call(std::uint32_t line, ExpressionPtr callee) {
    return make(line, [callee, given = arguments()](RenderState& state, Scope& scope) {
      const Value called = callee->evaluate(state, scope);
      return call_value(state, called, given.evaluated(state, scope));
    });
  }

  ExpressionPtr item(std::uint32_t line, ExpressionPtr object, ExpressionPtr index) {
    return make(line, [=](RenderState& state, Scope& scope) {
      const Value from = object->evaluate(state, scope);
      return get_item(state, from, index->evaluate(state, scope));
    });
  }

  // Elements with commas between them, up to the bracket, which is taken.
  template <typename Parse>
  auto separated(std::string_view end, Parse parse) {
    std::vector<decltype(parse())> elements;
    while (!in_.at(end)) {
      elements.push_back(parse());
      if (!in_.skip(",")) break;
    }
    in_.expect(end);
    return elements;
  }

  ExpressionPtr operand(Level level) {
    if (level == Level::kProduct) return unary(true);
    if (level == Level::kAnd) return negation();
    return binary(static_cast<Level>(static_cast<int>(level) + 1));
  }

  ExpressionPtr operation(std::uint32_t line, Operator op, ExpressionPtr left,
                          ExpressionPtr right) {
    return make(line, [=](RenderState& state, Scope& scope) {
      const Value first = left->evaluate(state, scope);
      if (op == Operator::kAnd && !truth(first)) return first;
      if (op == Operator::kOr && truth(first)) return first;
      return binary_operation(state, op, first, right->evaluate(state, scope));
    });
  }

  ExpressionPtr binary(Level level) {
    ExpressionPtr left = operand(level);
    ExpressionPtr before = left;
    for (bool is_chain = false;; is_chain = level == Level::kComparison) {
      if (in_.at("**")) in_.unsupported("the operator '**'");
      const auto* const row = std::find_if(kBinary.begin(), kBinary.end(), [&](const auto& known) {
        return known.level == level && in_.at(known.text);
      });
      if (row == kBinary.end() || (in_.at("not") && !in_.ahead().is("in"))) return left;
      const std::uint32_t line = in_.next().line;
      if (row->op == Operator::kNotIn) in_.next();
      ExpressionPtr right = operand(level);
      // Python reads a < b < c as a < b and b < c.
      ExpressionPtr made = operation(line, row->op, is_chain ? before : left, right);
      left = is_chain ? operation(line, Operator::kAnd, left, made) : made;
      before = right;
    }
  }

  ExpressionPtr negation() {
    const std::uint32_t first_line = in_.line();
    if (!in_.skip("not")) return binary(Level::kComparison);
    const Nesting nesting = parsing_.deeper();
    return make(first_line, [operand = negation()](RenderState& state, Scope& scope) {
      return Value::boolean(!truth(operand->evaluate(state, scope)));
    });
  }

  ExpressionPtr sign() {
    const Nesting nesting = parsing_.deeper();
    const std::uint32_t first_line = in_.line();
    const bool is_minus = in_.next().is("-");
    return make(first_line, [is_minus, operand = unary(false)](RenderState& state, Scope& scope) {
      const Value value = operand->evaluate(state, scope);
      if (is_minus) return negate(state, value);
      // Python's + of a number is the number, of a boolean an integer, of anything else refused.
      return value.is(Kind::kFloat)
                 ? value
                 : binary_operation(state, Operator::kAdd, Value::integer(0), value);
    });
  }

  ExpressionPtr unary(bool with_filters) {
    ExpressionPtr value = postfix(in_.at("-") || in_.at("+") ? sign() : primary());
    return with_filters ? filters_and_tests(value) : value;
  }

  ExpressionPtr primary() {
    const std::uint32_t first_line = in_.line();
    if (in_.current().kind == TokenKind::kNumber) return literal(first_line, in_.next().number);
    if (in_.current().kind == TokenKind::kString) {
      std::string text;
      while (in_.current().kind == TokenKind::kString) text += in_.next().text;
      return literal(first_line, Value::text(std::move(text)));
    }
    if (in_.current().kind == TokenKind::kName) return name_or_constant();
    if (in_.skip("[")) {
      return display(first_line, Sequence::Form::kList,
                     separated("]", [&] { return expression(); }));
    }
    if (in_.skip("{")) return mapping(first_line);
    if (!in_.skip("(")) in_.fail_expected("an expression");
    if (in_.skip(")")) return display(first_line, Sequence::Form::kTuple, {});
    ExpressionPtr value = tuple(true);
    in_.expect(")");
    return value;
  }

  ExpressionPtr mapping(std::uint32_t line) {
    auto entries = separated("}", [&] {
      ExpressionPtr key = expression();
      in_.expect(":");
      return std::pair(key, expression());
    });
    return make(line, [entries = std::move(entries)](RenderState& state, Scope& scope) {
      auto& made = state.make<Mapping>();
      for (const auto& [key, value] : entries) {
        const Value made_key = key->evaluate(state, scope);
        set_entry(state, made, made_key, value->evaluate(state, scope));
      }
      return Value::mapping(made);
    });
  }

  ExpressionPtr name_or_constant() {
    const Token& token = in_.next();
    if (!is_constant(token)) return name(token.line, token.text);
    Value value = Value::none();
    if (is_one_of(token, {"true", "True"})) value = Value::boolean(true);
    if (is_one_of(token, {"false", "False"})) value = Value::boolean(false);
    return literal(token.line, std::move(value));
  }

  ExpressionPtr postfix(ExpressionPtr object) {
    while (true) {
      const std::uint32_t line = in_.line();
      if (in_.skip(".")) {
        object = member(line, object);
      } else if (in_.skip("[")) {
        object = subscript(line, object);
      } else if (in_.at("(")) {
        object = call(line, object);
      } else {
        return object;
      }
    }
  }

  ExpressionPtr member(std::uint32_t line, ExpressionPtr object) {
    const Token& token = in_.current();
    if (token.kind != TokenKind::kName && !token.number.is(Kind::kInteger)) {
      in_.fail_expected("a name or number behind '.'");
    }
    in_.next();
    if (token.kind != TokenKind::kName) {
      return item(line, object, literal(token.line, token.number));
    }
    if (!in_.at("(")) {
      return make(line, [object, name = token.text](RenderState& state, Scope& scope) {
        return get_attribute(state, object->evaluate(state, scope), name);
      });
    }
    // The common case, a method of a value, without an object for the method.
    const std::uint32_t call_line = in_.line();
    return make(call_line,
                [object, name = token.text, given = arguments()](RenderState& state, Scope& scope) {
                  const Value self = object->evaluate(state, scope);
                  if (const Builtin* method = find_method(state, self, name)) {
                    return call_builtin(state, *method, self, given.evaluated(state, scope));
                  }
                  const Value callee = get_attribute(state, self, name);
                  return call_value(state, callee, given.evaluated(state, scope));
                });
  }

  ExpressionPtr subscript(std::uint32_t line, ExpressionPtr object) {
    const auto bound = [&] { return in_.at(":") || in_.at("]") ? nullptr : expression(); };
    ExpressionPtr start = in_.at(":") ? nullptr : expression();
    const bool is_slice = in_.skip(":");
    ExpressionPtr stop = is_slice ? bound() : nullptr;
    ExpressionPtr step = is_slice && in_.skip(":") ? bound() : nullptr;
    if (in_.at(",")) in_.unsupported("a tuple as an index");
    in_.expect("]");
    if (!is_slice) return item(line, object, start);
    return make(line, [=](RenderState& state, Scope& scope) {
      const Value from = object->evaluate(state, scope);
      const auto whole = [&](ExpressionPtr at) -> std::optional<std::int64_t> {
        const Value value = at != nullptr ? at->evaluate(state, scope) : Value::none();
        if (value.is(Kind::kNone)) return std::nullopt;
        return as_integer(state, value, "a bound of a slice");
      };
      const auto first = whole(start);
      const auto last = whole(stop);
      return get_slice(state, from, {.start = first, .stop = last, .step = whole(step)});
    });
  }

  CallArguments arguments() {
    CallArguments given;
    in_.expect("(");
    while (!in_.at(")")) {
      if (in_.at("*") || in_.at("**")) in_.unsupported("'*' before an argument");
      if (in_.current().kind == TokenKind::kName && in_.ahead().is("=")) {
        std::string name = in_.next().text;
        in_.next();
        given.named.emplace_back(std::move(name), expression());
      } else {
        if (!given.named.empty()) in_.fail("an argument without a name behind one with a name");
        given.positional.push_back(expression());
      }
      if (!in_.skip(",")) break;
    }
    in_.expect(")");
    return given;
  }

  ExpressionPtr filters_and_tests(ExpressionPtr input) {
    while (true) {
      const std::uint32_t line = in_.line();
      if (in_.at("|")) {
        input = filter(input);
      } else if (in_.skip("is")) {
        input = test(line, input);
      } else if (in_.at("(")) {
        input = call(line, input);
      } else {
        return input;
      }
    }
  }

  ExpressionPtr apply(std::uint32_t line, const Builtin& builtin, ExpressionPtr input,
                      CallArguments given, bool is_negated) {
    return make(line, [=, &builtin, given = std::move(given)](RenderState& state, Scope& scope) {
      const Value self = input->evaluate(state, scope);
      const Value value = call_builtin(state, builtin, self, given.evaluated(state, scope));
      return is_negated ? Value::boolean(!truth(value)) : value;
    });
  }

  ExpressionPtr filter(ExpressionPtr input) {
    const std::uint32_t line = in_.next().line;
    const std::uint32_t name_line = in_.line();
    const std::string name = in_.expect_name("the name of a filter");
    const Builtin* builtin = find_filter(name);
    if (builtin == nullptr) {
      fail_at(ErrorCode::kUnsupported, name_line, "the filter '{}'", name);
    }
    return apply(line, *builtin, input, in_.at("(") ? arguments() : CallArguments(), false);
  }

  ExpressionPtr test(std::uint32_t line, ExpressionPtr input) {
    const bool is_negated = in_.skip("not");
    const std::uint32_t name_line = in_.line();
    const std::string name = in_.expect_name("the name of a test");
    const Builtin* builtin = find_builtin(tests(), name);
    if (builtin == nullptr) {
      fail_at(ErrorCode::kUnsupported, name_line, "the test '{}'", name);
    }
    if (in_.at("is")) in_.fail("a test of a test (put the first one in brackets)");
    // An argument needs no brackets: `x is equalto 3`.
    const TokenKind kind = in_.current().kind;
    const bool is_word = is_one_of(in_.current(), {"else", "or", "and"});
    const bool is_argument = (kind == TokenKind::kName && !is_word) || kind == TokenKind::kString ||
                             kind == TokenKind::kNumber || is_one_of(in_.current(), {"[", "{"});
    CallArguments given;
    if (in_.at("(")) {
      given = arguments();
    } else if (is_argument) {
      given.positional.push_back(postfix(primary()));
    }
    return apply(line, *builtin, input, std::move(given), is_negated);
  }

  Parsing& parsing_;
  TokenCursor& in_;
};

}  // namespace

Value Expression::evaluate(RenderState& state, Scope& scope) const {
  const Nesting nesting = state.deeper();
  state.step();
  const std::uint32_t before = state.at_line(line);
  Value value = run(state, scope);
  state.at_line(before);
  return value;
}

bool is_one_of(const Token& token, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](auto word) { return token.is(word); });
}

bool is_constant(const Token& token) {
  return is_one_of(token, {"true", "false", "none", "True", "False", "None"});
}

ExpressionPtr parse_expression(Parsing& parsing) {
  return Grammar(parsing).expression();
}

ExpressionPtr parse_tuple(Parsing& parsing, bool conditionals) {
  return Grammar(parsing).tuple(conditionals);
}

ExpressionPtr parse_filters(Parsing& parsing, std::string_view input) {
  Grammar grammar(parsing);
  return grammar.filters(grammar.name(parsing.in.line(), std::string(input)));
}

}  // namespace ingot::inference::jinja
