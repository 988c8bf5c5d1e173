#include "inference/chat/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/value_tests.h"

namespace ingot::inference::jinja {
namespace {

// A chain such as a + b + c + ... is parsed in a loop but becomes as deep a tree.
constexpr std::uint32_t kMaxTreeDepth = 200;

std::uint32_t depth_of(const ExpressionPtr& expression) {
  return expression ? expression->depth : 0;
}

template <typename Node>
ExpressionPtr make(std::uint32_t line, std::uint32_t depth_below, Node node) {
  if (depth_below >= kMaxTreeDepth) {
    throw Error(ErrorCode::kLimit,
                fmt::format("line {}: an expression of more than {} levels", line, kMaxTreeDepth));
  }
  auto made = std::make_unique<Expression>();
  made->node = std::move(node);
  made->line = line;
  made->depth = depth_below + 1;
  return made;
}

std::uint32_t depth_of(const CallArguments& arguments) {
  std::uint32_t depth = 0;
  for (const auto& value : arguments.positional) depth = std::max(depth, value->depth);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
  return depth;
}

ExpressionPtr binary(std::uint32_t line, BinaryOperator op, ExpressionPtr left,
                     ExpressionPtr right) {
  const std::uint32_t depth = std::max(depth_of(left), depth_of(right));
  return make(line, depth, Binary{.op = op, .left = std::move(left), .right = std::move(right)});
}

bool is_reserved(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kReserved = {"true", "false", "none",
                                                                "True", "False", "None"};
  return std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
}

std::optional<Relation> relation_of(const Token& token) {
  static constexpr std::array<std::pair<std::string_view, Relation>, 6> kRelations = {
      {{"==", Relation::kEqual},
       {"!=", Relation::kNotEqual},
       {"<", Relation::kLess},
       {"<=", Relation::kLessEqual},
       {">", Relation::kGreater},
       {">=", Relation::kGreaterEqual}}};
  for (const auto& [name, relation] : kRelations) {
    if (token.is_operator(name)) return relation;
  }
  return std::nullopt;
}

}  // namespace

ExpressionPtr ExpressionParser::expression() {
  const TokenStream::Depth depth(tokens_);
  const std::uint32_t line = tokens_.line();
  ExpressionPtr then = disjunction();
  while (tokens_.skip_name("if")) {
    ExpressionPtr condition = disjunction();
    ExpressionPtr otherwise = tokens_.skip_name("else") ? expression() : nullptr;
    const std::uint32_t below =
        std::max({depth_of(then), depth_of(condition), depth_of(otherwise)});
    then = make(line, below,
                Conditional{.condition = std::move(condition),
                            .then = std::move(then),
                            .otherwise = std::move(otherwise)});
  }
  return then;
}

bool ExpressionParser::at_tuple_end() const {
  const Token& token = tokens_.current();
  return token.kind == TokenKind::kBlockEnd || token.kind == TokenKind::kVariableEnd ||
         token.is_operator(")") || token.is_name("in");
}

ExpressionPtr ExpressionParser::tuple(bool conditionals) {
  const std::uint32_t line = tokens_.line();
  ListDisplay display{.items = {}, .is_tuple = true};
  std::uint32_t below = 0;
  bool has_comma = false;
  while (!at_tuple_end()) {
    display.items.push_back(conditionals ? expression() : disjunction());
    below = std::max(below, display.items.back()->depth);
    if (!tokens_.skip_operator(",")) break;
    has_comma = true;
  }
  if (has_comma) return make(line, below, std::move(display));
  if (display.items.empty()) tokens_.fail_expected("an expression");
  return std::move(display.items.front());
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  for (std::uint32_t line = tokens_.line(); tokens_.skip_name("or"); line = tokens_.line()) {
    left = binary(line, BinaryOperator::kOr, std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  for (std::uint32_t line = tokens_.line(); tokens_.skip_name("and"); line = tokens_.line()) {
    left = binary(line, BinaryOperator::kAnd, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const std::uint32_t line = tokens_.line();
  if (!tokens_.skip_name("not")) return comparison();
  const TokenStream::Depth depth(tokens_);
  ExpressionPtr operand = negation();
  const std::uint32_t below = depth_of(operand);
  return make(line, below, Unary{.op = UnaryOperator::kNot, .operand = std::move(operand)});
}

ExpressionPtr ExpressionParser::comparison() {
  const std::uint32_t line = tokens_.line();
  Comparison chain{.first = sum(), .rest = {}};
  std::uint32_t below = depth_of(chain.first);
  while (true) {
    std::optional<Relation> relation = relation_of(tokens_.current());
    if (relation) {
      tokens_.next();
    } else if (tokens_.skip_name("in")) {
      relation = Relation::kIn;
    } else if (tokens_.current().is_name("not") && tokens_.ahead().is_name("in")) {
      tokens_.next();
      tokens_.next();
      relation = Relation::kNotIn;
    } else {
      break;
    }
    chain.rest.emplace_back(*relation, sum());
    below = std::max(below, depth_of(chain.rest.back().second));
  }
  if (chain.rest.empty()) return std::move(chain.first);
  return make(line, below, std::move(chain));
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (tokens_.current().is_operator("+") || tokens_.current().is_operator("-")) {
    const Token token = tokens_.next();
    left = binary(token.line, token.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract,
                  std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const std::uint32_t line = tokens_.line();
  Concatenation chain;
  chain.parts.push_back(product());
  while (tokens_.skip_operator("~")) chain.parts.push_back(product());
  if (chain.parts.size() == 1) return std::move(chain.parts.front());
  std::uint32_t below = 0;
  for (const auto& part : chain.parts) below = std::max(below, part->depth);
  return make(line, below, std::move(chain));
}

ExpressionPtr ExpressionParser::product() {
  static constexpr std::array<std::pair<std::string_view, BinaryOperator>, 4> kOperators = {
      {{"*", BinaryOperator::kMultiply},
       {"/", BinaryOperator::kDivide},
       {"//", BinaryOperator::kFloorDivide},
       {"%", BinaryOperator::kModulo}}};
  ExpressionPtr left = unary(true);
  while (true) {
    if (tokens_.current().is_operator("**")) tokens_.unsupported("the operator '**'");
    const auto* const found =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [&](const auto& row) { return tokens_.current().is_operator(row.first); });
    if (found == kOperators.end()) return left;
    const std::uint32_t line = tokens_.next().line;
    left = binary(line, found->second, std::move(left), unary(true));
  }
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const std::uint32_t line = tokens_.line();
  ExpressionPtr value;
  if (tokens_.current().is_operator("-") || tokens_.current().is_operator("+")) {
    const TokenStream::Depth depth(tokens_);
    const UnaryOperator op =
        tokens_.next().text == "-" ? UnaryOperator::kMinus : UnaryOperator::kPlus;
    ExpressionPtr operand = unary(false);
    const std::uint32_t below = depth_of(operand);
    value = make(line, below, Unary{.op = op, .operand = std::move(operand)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token& token = tokens_.current();
  switch (token.kind) {
    case TokenKind::kName:
      return name_or_constant();
    case TokenKind::kString:
      return string();
    case TokenKind::kInteger:
      tokens_.next();
      return make(token.line, 0, Literal{.value = Value::integer(token.integer)});
    case TokenKind::kFloat:
      tokens_.next();
      return make(token.line, 0, Literal{.value = Value::real(token.real)});
    case TokenKind::kOperator:
      if (token.text == "(") return parenthesized();
      if (token.text == "[") return list();
      if (token.text == "{") return dict();
      break;
    default:
      break;
  }
  tokens_.fail_expected("an expression");
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token& token = tokens_.next();
  const std::string& text = token.text;
  if (!is_reserved(text)) return make(token.line, 0, Name{.name = text});
  Value value = Value::none();
  if (text == "true" || text == "True") value = Value::boolean(true);
  if (text == "false" || text == "False") value = Value::boolean(false);
  return make(token.line, 0, Literal{.value = std::move(value)});
}

ExpressionPtr ExpressionParser::string() {
  const std::uint32_t line = tokens_.line();
  std::string text;
  while (tokens_.current().kind == TokenKind::kString) text += tokens_.next().text;
  return make(line, 0,
              Literal{.value = Value::text(std::make_shared<const std::string>(std::move(text)))});
}

ExpressionPtr ExpressionParser::parenthesized() {
  const TokenStream::Depth depth(tokens_);
  const std::uint32_t line = tokens_.next().line;
  if (tokens_.skip_operator(")")) {
    return make(line, 0, ListDisplay{.items = {}, .is_tuple = true});
  }
  ExpressionPtr value = tuple(true);
  tokens_.expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::list() {
  const std::uint32_t line = tokens_.next().line;
  ListDisplay display;
  std::uint32_t below = 0;
  while (!tokens_.current().is_operator("]")) {
    display.items.push_back(expression());
    below = std::max(below, display.items.back()->depth);
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("]");
  return make(line, below, std::move(display));
}

ExpressionPtr ExpressionParser::dict() {
  const std::uint32_t line = tokens_.next().line;
  DictDisplay display;
  std::uint32_t below = 0;
  while (!tokens_.current().is_operator("}")) {
    ExpressionPtr key = expression();
    tokens_.expect_operator(":");
    ExpressionPtr value = expression();
    below = std::max({below, key->depth, value->depth});
    display.entries.emplace_back(std::move(key), std::move(value));
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("}");
  return make(line, below, std::move(display));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr object) {
  while (true) {
    if (tokens_.current().is_operator(".")) {
      object = member(std::move(object));
    } else if (tokens_.current().is_operator("[")) {
      object = subscript(std::move(object));
    } else if (tokens_.current().is_operator("(")) {
      object = call(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr input) {
  while (true) {
    const std::uint32_t line = tokens_.line();
    if (tokens_.current().is_operator("|")) {
      Filter made = filter();
      const std::uint32_t below = std::max(depth_of(input), depth_of(made.arguments));
      made.input = std::move(input);
      input = make(line, below, std::move(made));
    } else if (tokens_.skip_name("is")) {
      input = test(std::move(input));
    } else if (tokens_.current().is_operator("(")) {
      input = call(std::move(input));
    } else {
      return input;
    }
  }
}

ExpressionPtr ExpressionParser::member(ExpressionPtr object) {
  const std::uint32_t line = tokens_.next().line;
  const std::uint32_t below = depth_of(object);
  const Token& token = tokens_.current();
  if (token.kind == TokenKind::kName) {
    tokens_.next();
    return make(line, below, Attribute{.object = std::move(object), .name = token.text});
  }
  if (token.kind != TokenKind::kInteger) tokens_.fail_expected("a name or number behind '.'");
  tokens_.next();
  return make(line, below,
              Item{.object = std::move(object),
                   .index = make(line, 0, Literal{.value = Value::integer(token.integer)})});
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const std::uint32_t line = tokens_.next().line;
  ExpressionPtr start = tokens_.current().is_operator(":") ? nullptr : expression();
  if (!tokens_.skip_operator(":")) {
    if (tokens_.current().is_operator(",")) tokens_.unsupported("a tuple as an index");
    tokens_.expect_operator("]");
    const std::uint32_t below = std::max(depth_of(object), depth_of(start));
    return make(line, below, Item{.object = std::move(object), .index = std::move(start)});
  }
  const auto bound = [&] {
    const bool is_absent = tokens_.current().is_operator(":") || tokens_.current().is_operator("]");
    return is_absent ? nullptr : expression();
  };
  ExpressionPtr stop = bound();
  ExpressionPtr step = tokens_.skip_operator(":") ? bound() : nullptr;
  if (tokens_.current().is_operator(",")) tokens_.unsupported("a tuple as an index");
  tokens_.expect_operator("]");
  const std::uint32_t below =
      std::max({depth_of(object), depth_of(start), depth_of(stop), depth_of(step)});
  return make(line, below,
              Slice{.object = std::move(object),
                    .start = std::move(start),
                    .stop = std::move(stop),
                    .step = std::move(step)});
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const std::uint32_t line = tokens_.line();
  CallArguments given = arguments();
  const std::uint32_t below = std::max(depth_of(callee), depth_of(given));
  return make(line, below, Call{.callee = std::move(callee), .arguments = std::move(given)});
}

CallArguments ExpressionParser::arguments() {
  CallArguments given;
  tokens_.expect_operator("(");
  while (!tokens_.current().is_operator(")")) {
    if (tokens_.current().is_operator("*") || tokens_.current().is_operator("**")) {
      tokens_.unsupported("'*' before an argument");
    }
    if (tokens_.current().kind == TokenKind::kName && tokens_.ahead().is_operator("=")) {
      std::string name = tokens_.next().text;
      tokens_.next();
      given.named.emplace_back(std::move(name), expression());
    } else {
      if (!given.named.empty()) tokens_.fail("an argument without a name behind one with a name");
      given.positional.push_back(expression());
    }
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator(")");
  return given;
}

Filter ExpressionParser::filter() {
  tokens_.expect_operator("|");
  const Token& token = tokens_.current();
  const std::string name = tokens_.expect_any_name("the name of a filter");
  Filter made{.input = nullptr, .row = find_filter(name), .arguments = {}};
  if (made.row == nullptr) {
    throw Error(ErrorCode::kUnsupported, fmt::format("line {}: the filter '{}'", token.line, name));
  }
  if (tokens_.current().is_operator("(")) made.arguments = arguments();
  return made;
}

std::vector<Filter> ExpressionParser::filter_chain() {
  std::vector<Filter> chain;
  while (tokens_.current().is_operator("|")) chain.push_back(filter());
  return chain;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const Token& token = tokens_.current();
  Test made;
  made.negated = tokens_.skip_name("not");
  const std::string name = tokens_.expect_any_name("the name of a test");
  made.row = find_test(name);
  if (made.row == nullptr) {
    throw Error(ErrorCode::kUnsupported, fmt::format("line {}: the test '{}'", token.line, name));
  }
  const Token& behind = tokens_.current();
  const bool is_word = behind.is_name("else") || behind.is_name("or") || behind.is_name("and");
  if (behind.is_name("is")) tokens_.fail("a test of a test (put the first one in brackets)");
  if (behind.is_operator("(")) {
    CallArguments given = arguments();
    if (!given.named.empty()) tokens_.unsupported("a named argument of a test");
    made.arguments = std::move(given.positional);
  } else if ((behind.kind == TokenKind::kName && !is_word) || behind.kind == TokenKind::kString ||
             behind.kind == TokenKind::kInteger || behind.kind == TokenKind::kFloat ||
             behind.is_operator("[") || behind.is_operator("{")) {
    made.arguments.push_back(postfix(primary()));
  }
  std::uint32_t below = depth_of(input);
  for (const auto& argument : made.arguments) below = std::max(below, argument->depth);
  made.input = std::move(input);
  return make(token.line, below, std::move(made));
}

Target ExpressionParser::one_target(bool attributes) {
  if (tokens_.skip_operator("(")) {
    const TokenStream::Depth depth(tokens_);
    Target inner = target(false);
    tokens_.expect_operator(")");
    return inner;
  }
  Target made{
      .name = tokens_.expect_any_name("a name to assign to"), .attribute = {}, .members = {}};
  if (is_reserved(made.name)) tokens_.fail(fmt::format("'{}' cannot be assigned to", made.name));
  if (attributes && tokens_.skip_operator(".")) {
    made.attribute = tokens_.expect_any_name("an attribute");
  }
  return made;
}

Target ExpressionParser::target(bool attributes) {
  Target first = one_target(attributes);
  if (!tokens_.current().is_operator(",")) return first;
  Target made;
  made.members.push_back(std::move(first));
  while (tokens_.skip_operator(",")) {
    if (tokens_.current().kind != TokenKind::kName && !tokens_.current().is_operator("(")) break;
    if (tokens_.current().is_name("in")) break;
    made.members.push_back(one_target(attributes));
  }
  return made;
}

}  // namespace ingot::inference::jinja
