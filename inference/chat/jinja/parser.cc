#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/lexer.h"
#include "inference/chat/jinja/limits.h"
#include "inference/chat/jinja/syntax.h"

namespace ingot::inference::jinja {
namespace {

bool is_one_of(const Token& token, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](auto word) { return token.is(word); });
}

bool is_constant(const Token& token) {
  return is_one_of(token, {"true", "false", "none", "True", "False", "None"});
}

// Operators with two operands. A higher level binds tighter; `not` stands below kComparison.
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

class Parser {
 public:
  explicit Parser(std::string_view source) : in_(tokenize(source)) {}

  Syntax run() {
    syntax_.block = statements({});
    if (in_.current().kind != TokenKind::kEnd) in_.fail_expected("a statement");
    return std::move(syntax_);
  }

 private:
  // One level deeper for as long as the result lives.
  [[nodiscard]] Nesting deeper() { return {depth_, kMaxSyntaxDepth, in_.line()}; }

  template <typename Node>
  ExpressionPtr make(std::uint32_t line, Node node) {
    return &syntax_.expressions.emplace_back(Expression{.node = std::move(node), .line = line});
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

  // Statements

  // Up to a block tag that starts with one of the words, which is then current, or to the end.
  Block statements(std::initializer_list<std::string_view> ends) {
    const Nesting nesting = deeper();
    Block block;
    while (in_.current().kind != TokenKind::kEnd) {
      const std::uint32_t first_line = in_.line();
      if (in_.at("{%") && is_one_of(in_.ahead(), ends)) {
        in_.next();
        return block;
      }
      if (in_.current().kind == TokenKind::kData) {
        block.push_back({.node = Data{.text = in_.next().text}, .line = first_line});
      } else if (in_.skip("{%")) {
        block.push_back({.node = tag(), .line = first_line});
        in_.expect("%}");
      } else {
        in_.expect("{{");
        block.push_back({.node = Output{.value = tuple(true)}, .line = first_line});
        in_.expect("}}");
      }
    }
    if (ends.size() != 0) {
      in_.fail("the end of the template, where '{}' is missing", *(ends.end() - 1));
    }
    return block;
  }

  Block body(std::initializer_list<std::string_view> ends) {
    in_.expect("%}");
    return statements(ends);
  }

  // The body of a statement with a scope of its own; the word that ends it is taken.
  Block inner_body(std::string_view end) {
    ++n_scopes_;
    Block block = body({end});
    --n_scopes_;
    in_.next();
    return block;
  }

  // From the word of a statement up to the end of its last tag, which is not taken.
  Statement::Node tag() {
    if (in_.current().kind != TokenKind::kName) in_.fail_expected("a statement");
    if (in_.skip("set")) return set();
    if (in_.skip("if")) return conditional();
    if (in_.skip("for")) return loop();
    if (in_.skip("macro")) return macro();
    if (in_.skip("generation")) return Generation{.body = inner_body("endgeneration")};
    if (in_.at("break") || in_.at("continue")) {
      if (n_loops_ == 0) in_.fail("'{}' outside of a loop", in_.current().text);
      if (in_.next().is("break")) return Break{};
      return Continue{};
    }
    const std::string& word = in_.current().text;
    if (word.starts_with("end") || word == "else" || word == "elif") {
      in_.fail("'{}' without its beginning", word);
    }
    in_.unsupported("the statement '{}'", word);
  }

  Statement::Node set() {
    Target to = target(true);
    if (in_.skip("=")) return Set{.target = std::move(to), .value = tuple(true)};
    ExpressionPtr value = make(in_.line(), Name{.name = std::string(kBlockText)});
    while (in_.at("|")) value = filter(value);
    return SetBlock{.target = std::move(to), .value = value, .body = inner_body("endset")};
  }

  Statement::Node conditional() {
    If made;
    do {
      ExpressionPtr condition = tuple(false);
      made.branches.emplace_back(condition, body({"elif", "else", "endif"}));
    } while (in_.skip("elif"));
    if (in_.skip("else")) made.otherwise = body({"endif"});
    in_.expect("endif");
    return made;
  }

  Statement::Node loop() {
    For made;
    made.target = target(false);
    in_.expect("in");
    made.sequence = tuple(false);
    if (in_.skip("if")) made.condition = expression();
    if (in_.at("recursive")) in_.unsupported("a recursive loop");
    ++n_scopes_;
    ++n_loops_;
    made.body = body({"else", "endfor"});
    --n_loops_;
    if (in_.skip("else")) made.otherwise = body({"endfor"});
    --n_scopes_;
    in_.expect("endfor");
    return made;
  }

  Statement::Node macro() {
    if (n_scopes_ != 0) in_.unsupported("a macro inside a loop, block or macro");
    Macro made{.name = in_.expect_name("the name of a macro"), .parameters = {}, .body = {}};
    in_.expect("(");
    while (!in_.at(")")) {
      std::string name = in_.expect_name("a parameter");
      ExpressionPtr value = in_.skip("=") ? expression() : nullptr;
      if (value == nullptr && !made.parameters.empty() && made.parameters.back().second) {
        in_.fail("a parameter without a default behind one with a default");
      }
      made.parameters.emplace_back(std::move(name), value);
      if (!in_.skip(",")) break;
    }
    in_.expect(")");
    made.body = inner_body("endmacro");
    return made;
  }

  Target one_target(bool attributes) {
    if (in_.skip("(")) {
      const Nesting nesting = deeper();
      Target inner = target(false);
      in_.expect(")");
      return inner;
    }
    if (is_constant(in_.current())) in_.fail("'{}' cannot be assigned to", in_.current().text);
    if (!attributes && in_.at("loop")) in_.fail("'loop' cannot be the variable of a loop");
    Target made{.name = in_.expect_name("a name to assign to"), .attribute = {}, .members = {}};
    if (attributes && in_.skip(".")) made.attribute = in_.expect_name("an attribute");
    return made;
  }

  // What `set` and `for` assign to; an attribute of a namespace where `attributes` is true.
  Target target(bool attributes) {
    Target first = one_target(attributes);
    if (!in_.at(",")) return first;
    Target made;
    made.members.push_back(std::move(first));
    while (in_.skip(",")) {
      if ((in_.current().kind != TokenKind::kName && !in_.at("(")) || in_.at("in")) break;
      made.members.push_back(one_target(attributes));
    }
    return made;
  }

  // Expressions, with the precedence that Jinja gives its operators: a filter binds tighter than
  // any of them, `~` tighter than `+`.

  // With `a if b else c` at its top.
  ExpressionPtr expression() {
    const Nesting nesting = deeper();
    const std::uint32_t first_line = in_.line();
    ExpressionPtr then = binary(Level::kOr);
    while (in_.skip("if")) {
      ExpressionPtr condition = binary(Level::kOr);
      ExpressionPtr otherwise = in_.skip("else") ? expression() : nullptr;
      then = make(first_line,
                  Conditional{.condition = condition, .then = then, .otherwise = otherwise});
    }
    return then;
  }

  // One expression, or several as a tuple without brackets; `conditionals`: each may be one.
  ExpressionPtr tuple(bool conditionals) {
    const std::uint32_t first_line = in_.line();
    ListDisplay display{.items = {}, .is_tuple = true};
    bool has_comma = false;
    while (!is_one_of(in_.current(), {"%}", "}}", ")", "in"})) {
      display.items.push_back(conditionals ? expression() : binary(Level::kOr));
      if (!in_.skip(",")) break;
      has_comma = true;
    }
    if (has_comma) return make(first_line, std::move(display));
    if (display.items.empty()) in_.fail_expected("an expression");
    return display.items.front();
  }

  ExpressionPtr operand(Level level) {
    if (level == Level::kProduct) return unary(true);
    if (level == Level::kAnd) return negation();
    return binary(static_cast<Level>(static_cast<int>(level) + 1));
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
      const std::uint32_t operator_line = in_.next().line;
      if (row->op == Operator::kNotIn) in_.next();
      ExpressionPtr right = operand(level);
      // As in Python, a < b < c is a < b and b < c.
      ExpressionPtr made = make(
          operator_line, Binary{.op = row->op, .left = is_chain ? before : left, .right = right});
      left = is_chain
                 ? make(operator_line, Binary{.op = Operator::kAnd, .left = left, .right = made})
                 : made;
      before = right;
    }
  }

  ExpressionPtr negation() {
    const std::uint32_t first_line = in_.line();
    if (!in_.skip("not")) return binary(Level::kComparison);
    const Nesting nesting = deeper();
    return make(first_line, Unary{.sign = Unary::Sign::kNot, .operand = negation()});
  }

  ExpressionPtr unary(bool with_filters) {
    const std::uint32_t first_line = in_.line();
    ExpressionPtr value = nullptr;
    if (in_.at("-") || in_.at("+")) {
      const Nesting nesting = deeper();
      const auto sign = in_.next().is("-") ? Unary::Sign::kMinus : Unary::Sign::kPlus;
      value = make(first_line, Unary{.sign = sign, .operand = unary(false)});
    } else {
      value = primary();
    }
    value = postfix(value);
    return with_filters ? filters_and_tests(value) : value;
  }

  ExpressionPtr primary() {
    const std::uint32_t first_line = in_.line();
    if (in_.current().kind == TokenKind::kNumber) {
      return make(first_line, Literal{.value = in_.next().number});
    }
    if (in_.current().kind == TokenKind::kString) {
      std::string text;
      while (in_.current().kind == TokenKind::kString) text += in_.next().text;
      return make(first_line, Literal{.value = Value::text(std::move(text))});
    }
    if (in_.current().kind == TokenKind::kName) return name_or_constant();
    if (in_.skip("[")) {
      return make(first_line, ListDisplay{.items = separated("]", [&] { return expression(); })});
    }
    if (in_.skip("{")) {
      return make(first_line, DictDisplay{.entries = separated("}", [&] {
                                            ExpressionPtr key = expression();
                                            in_.expect(":");
                                            return std::pair(key, expression());
                                          })});
    }
    if (!in_.skip("(")) in_.fail_expected("an expression");
    if (in_.skip(")")) return make(first_line, ListDisplay{.items = {}, .is_tuple = true});
    ExpressionPtr value = tuple(true);
    in_.expect(")");
    return value;
  }

  ExpressionPtr name_or_constant() {
    const Token& token = in_.next();
    if (!is_constant(token)) return make(token.line, Name{.name = token.text});
    Value value = Value::none();
    if (is_one_of(token, {"true", "True"})) value = Value::boolean(true);
    if (is_one_of(token, {"false", "False"})) value = Value::boolean(false);
    return make(token.line, Literal{.value = std::move(value)});
  }

  ExpressionPtr postfix(ExpressionPtr object) {
    while (true) {
      const std::uint32_t operator_line = in_.line();
      if (in_.skip(".")) {
        object = member(operator_line, object);
      } else if (in_.skip("[")) {
        object = subscript(operator_line, object);
      } else if (in_.at("(")) {
        object = make(operator_line, Call{.callee = object, .arguments = arguments()});
      } else {
        return object;
      }
    }
  }

  ExpressionPtr member(std::uint32_t operator_line, ExpressionPtr object) {
    const Token& token = in_.current();
    const bool is_name = token.kind == TokenKind::kName;
    if (!is_name && !token.number.is(Kind::kInteger)) {
      in_.fail_expected("a name or number behind '.'");
    }
    in_.next();
    if (is_name) return make(operator_line, Attribute{.object = object, .name = token.text});
    ExpressionPtr index = make(token.line, Literal{.value = token.number});
    return make(operator_line, Item{.object = object, .index = index});
  }

  ExpressionPtr subscript(std::uint32_t operator_line, ExpressionPtr object) {
    const auto bound = [&] { return in_.at(":") || in_.at("]") ? nullptr : expression(); };
    ExpressionPtr start = in_.at(":") ? nullptr : expression();
    const bool is_slice = in_.skip(":");
    ExpressionPtr stop = is_slice ? bound() : nullptr;
    ExpressionPtr step = is_slice && in_.skip(":") ? bound() : nullptr;
    if (in_.at(",")) in_.unsupported("a tuple as an index");
    in_.expect("]");
    if (!is_slice) return make(operator_line, Item{.object = object, .index = start});
    return make(operator_line, Slice{.object = object, .start = start, .stop = stop, .step = step});
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
      const std::uint32_t operator_line = in_.line();
      if (in_.at("|")) {
        input = filter(input);
      } else if (in_.skip("is")) {
        input = test(operator_line, input);
      } else if (in_.at("(")) {
        input = make(operator_line, Call{.callee = input, .arguments = arguments()});
      } else {
        return input;
      }
    }
  }

  ExpressionPtr filter(ExpressionPtr input) {
    Filter made{.input = input, .builtin = nullptr, .arguments = {}};
    const std::uint32_t operator_line = in_.next().line;
    const std::uint32_t name_line = in_.line();
    const std::string name = in_.expect_name("the name of a filter");
    made.builtin = find_filter(name);
    if (made.builtin == nullptr) {
      fail_at(ErrorCode::kUnsupported, name_line, "the filter '{}'", name);
    }
    if (in_.at("(")) made.arguments = arguments();
    return make(operator_line, std::move(made));
  }

  ExpressionPtr test(std::uint32_t operator_line, ExpressionPtr input) {
    Filter made{.input = input, .builtin = nullptr, .arguments = {}, .is_negated = in_.skip("not")};
    const std::uint32_t name_line = in_.line();
    const std::string name = in_.expect_name("the name of a test");
    made.builtin = find_builtin(tests(), name);
    if (made.builtin == nullptr) {
      fail_at(ErrorCode::kUnsupported, name_line, "the test '{}'", name);
    }
    if (in_.at("is")) in_.fail("a test of a test (put the first one in brackets)");
    // An argument needs no brackets: `x is equalto 3`.
    const TokenKind kind = in_.current().kind;
    const bool is_word = is_one_of(in_.current(), {"else", "or", "and"});
    const bool is_argument = (kind == TokenKind::kName && !is_word) || kind == TokenKind::kString ||
                             kind == TokenKind::kNumber || is_one_of(in_.current(), {"[", "{"});
    if (in_.at("(")) {
      made.arguments = arguments();
    } else if (is_argument) {
      made.arguments.positional.push_back(postfix(primary()));
    }
    return make(operator_line, std::move(made));
  }

  TokenCursor in_;
  std::size_t depth_ = 0;
  std::size_t n_loops_ = 0;   // around this place, within its macro
  std::size_t n_scopes_ = 0;  // around this place: loops, macros, blocks
  Syntax syntax_;
};

}  // namespace

Syntax parse_syntax(std::string_view source) {
  return Parser(source).run();
}

}  // namespace ingot::inference::jinja
