#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "inference/chat/jinja/value.h"

// The tree of a parsed template.

namespace ingot::inference::jinja {

struct Expression;
/// Points into Syntax::expressions. Trees of operators may be deep (a + b + c + ...), so nodes do
/// not own each other: their end needs no recursion.
using ExpressionPtr = const Expression*;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Literal {
  Value value;  ///< a scalar
};
struct Name {
  std::string name;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

enum class Operator : std::uint8_t {
  kOr,
  kAnd,
  kConcatenate,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
/// One sign or `not` before an operand.
struct Unary {
  enum class Sign : std::uint8_t { kMinus, kPlus, kNot };
  Sign sign = Sign::kNot;
  ExpressionPtr operand = nullptr;
};
struct Binary {
  Operator op = Operator::kAdd;
  ExpressionPtr left = nullptr, right = nullptr;
};
struct Conditional {
  ExpressionPtr condition = nullptr, then = nullptr;
  ExpressionPtr otherwise = nullptr;  ///< null: undefined
};
struct Attribute {
  ExpressionPtr object = nullptr;
  std::string name;
};
struct Item {
  ExpressionPtr object = nullptr, index = nullptr;
};
struct Slice {
  ExpressionPtr object = nullptr;
  ExpressionPtr start = nullptr, stop = nullptr, step = nullptr;  ///< each may be null
};
struct Call {
  ExpressionPtr callee = nullptr;
  CallArguments arguments;
};
/// A filter, or a test: `is not` negates it.
struct Filter {
  ExpressionPtr input = nullptr;
  const Builtin* builtin = nullptr;
  CallArguments arguments;
  bool is_negated = false;
};

struct Expression {
  using Node = std::variant<Literal, Name, ListDisplay, DictDisplay, Unary, Binary, Conditional,
                            Attribute, Item, Slice, Call, Filter>;
  Node node;
  std::uint32_t line = 1;
};

/// What is assigned to: a name, an attribute of a namespace, or several targets in a tuple.
struct Target {
  std::string name;
  std::string attribute;        ///< empty: the name itself
  std::vector<Target> members;  ///< not empty: the value is unpacked into these
};

struct Statement;
using Block = std::vector<Statement>;

struct Data {
  std::string text;
};
struct Output {
  ExpressionPtr value = nullptr;
};
struct Set {
  Target target;
  ExpressionPtr value = nullptr;
};
/// {% set x | filter %}...{% endset %}: the text of the block goes through the filters.
struct SetBlock {
  Target target;
  ExpressionPtr value = nullptr;  ///< the filters, with the name kBlockText as their input
  Block body;
};
/// No name of a template is empty, so none is hidden.
inline constexpr std::string_view kBlockText;
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr sequence = nullptr;
  ExpressionPtr condition = nullptr;  ///< may be null
  Block body, otherwise;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  ///< with a default, or null
  Block body;
};
/// {% generation %} of transformers: the body is rendered.
struct Generation {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  using Node =
      std::variant<Data, Output, Set, SetBlock, If, For, Macro, Generation, Break, Continue>;
  Node node;
  std::uint32_t line = 1;
};

struct Syntax {
  Block block;
  std::deque<Expression> expressions;
};

/// Parses a template in valid UTF-8. Throws kCorrupt for a syntax error, kUnsupported for a
/// construct outside the subset, by its name, and kLimit for too deep nesting, each with the line.
Syntax parse_syntax(std::string_view source);

}  // namespace ingot::inference::jinja
