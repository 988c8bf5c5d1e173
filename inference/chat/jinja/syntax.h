#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

// A template as tokens, and parsed: every part is the function that runs it, made where the part is
// parsed.

namespace ingot::inference::jinja {

enum class TokenKind : std::uint8_t {
  kData,      ///< text outside of tags, white space already trimmed
  kName,      ///< names, and words such as `if`
  kOperator,  ///< operators, and the ends of tags: {% %} {{ }}
  kString,    ///< text of a string, its escapes resolved
  kNumber,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::uint32_t line = 1;
  std::string text;  ///< empty for kNumber and kEnd
  Value number;      ///< set for kNumber: an integer or a float

  /// True if the token is this word or operator.
  [[nodiscard]] bool is(std::string_view word) const {
    return (kind == TokenKind::kName || kind == TokenKind::kOperator) && text == word;
  }
};

/// Cuts a template into tokens, the last of kind kEnd. White space as transformers sets Jinja up:
/// trim_blocks (the newline after a block tag or comment goes), lstrip_blocks (blanks before one
/// that starts its line go), and the newline at the end of the template goes; `-` and `+` in tags
/// as in Jinja. Line ends become "\n". Throws kCorrupt with the line for a text that is no
/// template, kUnsupported for Jinja outside the subset, and kLimit for a number beyond 64 bits.
std::vector<Token> tokenize(std::string_view source);

/// Tokens one by one, and the errors of their readers.
class TokenCursor : public Faults<TokenCursor> {
 public:
  /// REQUIRES: the last token is kEnd. It is never passed.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  [[nodiscard]] std::uint32_t line() const { return current().line; }
  [[nodiscard]] bool at(std::string_view word) const { return current().is(word); }
  /// Takes the current token; the one behind it becomes current.
  const Token& next();
  bool skip(std::string_view word);

  /// Throw kCorrupt when something else is current.
  void expect(std::string_view word);
  std::string expect_name(std::string_view what);

  /// Throws kCorrupt with the line: "expected WHAT, found ...".
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

struct Expression {
  std::function<Value(RenderState&, Scope&)> run;
  std::uint32_t line = 1;

  /// Computes the expression's value; counts one step and one level.
  Value evaluate(RenderState& state, Scope& scope) const;
};
/// Points into a list that the template holds. Trees of operators may be deep (a + b + c + ...), so
/// nodes do not own each other: their end needs no recursion.
using ExpressionPtr = const Expression*;

/// How a statement ends: `break` and `continue` also end the statements around it, up to a loop.
enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

struct Statement {
  std::function<Flow(RenderState&, Scope&)> run;
  std::uint32_t line = 1;
};
using Block = std::vector<Statement>;

Flow execute(const Block& block, RenderState& state, Scope& scope);
/// The text that the block writes; it does not reach the output.
Value captured(const Block& block, RenderState& state, Scope& scope);

struct Macro {
  std::string name;
  /// Names, each with its default or null.
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  Block body;
};

/// Greatest depth of nested brackets, signs and statements: the parser recurses.
inline constexpr std::size_t kMaxSyntaxDepth = 100;

/// A template on its way through the parser.
struct Parsing {
  TokenCursor in;
  std::deque<Expression>& expressions;
  std::size_t depth = 0;

  /// Counts one level more for as long as the result lives.
  [[nodiscard]] Nesting deeper() { return {depth, kMaxSyntaxDepth, in.line()}; }
};

bool is_one_of(const Token& token, std::initializer_list<std::string_view> words);
bool is_constant(const Token& token);

/// Parses one expression, with `a if b else c` at its top. Throws kCorrupt for a syntax error,
/// kUnsupported for a construct outside the subset, by its name, and kLimit for too deep nesting,
/// each with the line.
ExpressionPtr parse_expression(Parsing& parsing);
/// Parses one expression, or several as a tuple without brackets; `conditionals`: each may be a
/// conditional.
ExpressionPtr parse_tuple(Parsing& parsing, bool conditionals);
/// Parses the filters `| name(...)` of a text, which is found under the name `input`.
ExpressionPtr parse_filters(Parsing& parsing, std::string_view input);

}  // namespace ingot::inference::jinja
