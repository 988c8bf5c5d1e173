#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inference/chat/jinja/arguments.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/scope.h"
#include "inference/chat/jinja/syntax.h"

namespace ingot::inference::jinja {

/// Runs the tree of a template. Statements are in interpreter.cc, expressions in evaluation.cc.
class Interpreter {
 public:
  explicit Interpreter(RenderState& state) : state_(state) {}

  std::string render(const Block& block, Scope& globals);

  /// What a macro's call gives: the text of its body, in a scope of its own within that of the
  /// template.
  Value call_macro(const Macro& macro, const Scope& globals, Arguments&& arguments);

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  Flow execute(const Block& block, Scope& scope);
  Flow execute(const Statement& statement, Scope& scope);
  Flow execute_node(const Data& data, Scope& scope);
  Flow execute_node(const Output& output, Scope& scope);
  Flow execute_node(const Set& set, Scope& scope);
  Flow execute_node(const SetBlock& set, Scope& scope);
  Flow execute_node(const If& conditional, Scope& scope);
  Flow execute_node(const For& loop, Scope& scope);
  Flow execute_node(const Macro& macro, Scope& scope);
  Flow execute_node(const Break& node, Scope& scope);
  Flow execute_node(const Continue& node, Scope& scope);
  Flow execute_node(const Generation& generation, Scope& scope);

  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_node(const Literal& literal, Scope& scope);
  Value evaluate_node(const Name& name, Scope& scope);
  Value evaluate_node(const ListDisplay& list, Scope& scope);
  Value evaluate_node(const DictDisplay& dict, Scope& scope);
  Value evaluate_node(const Unary& unary, Scope& scope);
  Value evaluate_node(const Binary& binary, Scope& scope);
  Value evaluate_node(const Comparison& comparison, Scope& scope);
  Value evaluate_node(const Concatenation& concatenation, Scope& scope);
  Value evaluate_node(const Conditional& conditional, Scope& scope);
  Value evaluate_node(const Attribute& attribute, Scope& scope);
  Value evaluate_node(const Item& item, Scope& scope);
  Value evaluate_node(const Slice& slice, Scope& scope);
  Value evaluate_node(const Call& call, Scope& scope);
  Value evaluate_node(const Filter& filter, Scope& scope);
  Value evaluate_node(const Test& test, Scope& scope);
  Value call(const Value& callee, const Call& call, Scope& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, Scope& scope);

  void assign(const Target& target, const Value& value, Scope& scope);
  void write(std::string_view text);
  /// What `block` writes, which does not reach the output.
  std::string capture(const Block& block, Scope& scope);

  RenderState& state_;
  std::string out_;
};

}  // namespace ingot::inference::jinja
