#pragma once

#include <string_view>
#include <vector>

#include "inference/chat/jinja/syntax.h"
#include "inference/chat/jinja/token_stream.h"

namespace ingot::inference::jinja {

/// The expressions of a template, with the precedence that Jinja gives its operators: a filter
/// binds tighter than any of them, `~` tighter than `+`.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  /// With `a if b else c` at its top.
  ExpressionPtr expression();
  ExpressionPtr without_conditional() { return disjunction(); }
  /// One expression, or several as a tuple without brackets; `conditionals`: each may be one.
  ExpressionPtr tuple(bool conditionals);
  /// `| name | name(...)` behind {% set x %}.
  std::vector<Filter> filter_chain();
  /// What `set` and `for` assign to; an attribute of a namespace where `attributes` is true.
  Target target(bool attributes);

 private:
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr string();
  ExpressionPtr parenthesized();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr object);
  ExpressionPtr filters_and_tests(ExpressionPtr input);
  ExpressionPtr member(ExpressionPtr object);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr test(ExpressionPtr input);
  Filter filter();
  CallArguments arguments();
  Target one_target(bool attributes);
  [[nodiscard]] bool at_tuple_end() const;

  TokenStream& tokens_;
};

}  // namespace ingot::inference::jinja
