#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "inference/chat/jinja/value.h"

// The tree of a parsed template. Depths are bounded by the parser.

namespace ingot::inference::jinja {

struct FilterRow;
struct TestRow;
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

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

enum class UnaryOperator : std::uint8_t { kMinus, kPlus, kNot };
struct Unary {
  UnaryOperator op = UnaryOperator::kNot;
  ExpressionPtr operand;
};

enum class BinaryOperator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kAnd,
  kOr,
};
struct Binary {
  BinaryOperator op = BinaryOperator::kAdd;
  ExpressionPtr left, right;
};

enum class Relation : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
/// a < b < c, as in Python.
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> rest;
};

struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
struct Conditional {
  ExpressionPtr condition, then, otherwise;  ///< otherwise may be null: undefined
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, index;
};
struct Slice {
  ExpressionPtr object, start, stop, step;  ///< the last three may be null
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct Filter {
  ExpressionPtr input;
  const FilterRow* row = nullptr;
  CallArguments arguments;
};
struct Test {
  ExpressionPtr input;
  const TestRow* row = nullptr;
  std::vector<ExpressionPtr> arguments;
  bool negated = false;
};

struct Expression {
  using Node = std::variant<Literal, Name, ListDisplay, DictDisplay, Unary, Binary, Comparison,
                            Concatenation, Conditional, Attribute, Item, Slice, Call, Filter, Test>;
  Node node;
  std::uint32_t line = 1;
  std::uint32_t depth = 1;
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
  ExpressionPtr value;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  std::vector<Filter> filters;  ///< their inputs are null: the text of the block
  Block body;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr sequence, condition;  ///< condition may be null
  Block body, otherwise;
};
struct Macro {
  struct Parameter {
    std::string name;
    ExpressionPtr value;  ///< the default, may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};
struct Break {};
struct Continue {};
/// {% generation %} of transformers: the body is rendered.
struct Generation {
  Block body;
};

struct Statement {
  using Node =
      std::variant<Data, Output, Set, SetBlock, If, For, Macro, Break, Continue, Generation>;
  Node node;
  std::uint32_t line = 1;
};

}  // namespace ingot::inference::jinja
