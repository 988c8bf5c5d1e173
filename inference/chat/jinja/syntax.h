#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/lexer.h"
#include "inference/chat/jinja/limits.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

// A parsed template: every part is the function that runs it, made where the part is parsed.

namespace ingot::inference::jinja {

struct Expression {
  std::function<Value(RenderState&, Scope&)> run;
  std::uint32_t line = 1;

  /// Its value, for one step and one level.
  Value evaluate(RenderState& state, Scope& scope) const;
};
/// Points into a list that the template holds. Trees of operators may be deep (a + b + c + ...), so
/// nodes do not own each other: their end needs no recursion.
using ExpressionPtr = const Expression*;

/// How a statement ends: `break` and `continue` end those around it, too, up to a loop.
enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

struct Statement {
  std::function<Flow(RenderState&, Scope&)> run;
  std::uint32_t line = 1;
};
using Block = std::vector<Statement>;

Flow execute(const Block& block, RenderState& state, Scope& scope);
/// What the block writes; it does not reach the output.
Value captured(const Block& block, RenderState& state, Scope& scope);

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  ///< with a default, or null
  Block body;
};

/// A template on its way through the parser.
struct Parsing {
  TokenCursor in;
  std::deque<Expression>& expressions;
  std::size_t depth = 0;

  /// One level deeper for as long as the result lives.
  [[nodiscard]] Nesting deeper() { return {depth, kMaxSyntaxDepth, in.line()}; }
};

bool is_one_of(const Token& token, std::initializer_list<std::string_view> words);
bool is_constant(const Token& token);

/// One expression, with `a if b else c` at its top. Throws kCorrupt for a syntax error,
/// kUnsupported for a construct outside the subset, by its name, and kLimit for too deep nesting,
/// each with the line.
ExpressionPtr parse_expression(Parsing& parsing);
/// One expression, or several as a tuple without brackets; `conditionals`: each may be one.
ExpressionPtr parse_tuple(Parsing& parsing, bool conditionals);
/// The filters `| name(...)` of a text, which is found under `input`, a name.
ExpressionPtr parse_filters(Parsing& parsing, std::string_view input);

}  // namespace ingot::inference::jinja
