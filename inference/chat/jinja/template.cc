#include "inference/chat/jinja/template.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/syntax.h"
#include "inference/chat/jinja/value_text.h"

namespace ingot::inference::jinja {
namespace {

// The variables of a template, a loop's body, a macro's body or a block. A `set` stays in the scope
// in which it stands; an `if` has none of its own.
class Scope {
 public:
  explicit Scope(const Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // REQUIRES: the name outlives the scope.
  void set(std::string_view name, Value value) {
    variables_.insert_or_assign(name, std::move(value));
  }

  // Here or further out; null when nowhere.
  [[nodiscard]] const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }

 private:
  const Scope* outer_;
  std::map<std::string_view, Value> variables_;
};

class Interpreter {
 public:
  Interpreter(RenderState& state, Scope& globals) : state_(state), globals_(globals) {}

  std::string run(const Block& block) {
    execute(block, globals_);
    return std::move(out_);
  }

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  void write(std::string_view text) {
    state_.scan(text.size());
    if (text.size() > state_.limits().max_output_bytes - out_.size()) {
      state_.beyond("the template writes more than {} bytes", state_.limits().max_output_bytes);
    }
    out_ += text;
  }

  // What the block writes; it does not reach the output.
  Value captured(const Block& block, Scope& scope) {
    std::string outer = std::exchange(out_, {});
    execute(block, scope);
    return state_.text(std::exchange(out_, std::move(outer)));
  }

  void assign(const Target& target, const Value& value, Scope& scope) {
    if (!target.members.empty()) {
      const std::vector<Value> items = elements(state_, value);
      if (items.size() != target.members.size()) {
        state_.fault("{} values for {} variables", items.size(), target.members.size());
      }
      for (std::size_t i = 0; i < items.size(); ++i) assign(target.members[i], items[i], scope);
    } else if (target.attribute.empty()) {
      scope.set(target.name, value);
    } else {
      const Value* object = scope.find(target.name);
      if (object == nullptr || !object->is(Kind::kNamespace)) {
        state_.fault("'{}' is no namespace, so '{}' of it cannot be set", target.name,
                     target.attribute);
      }
      set_entry(state_, object->name_space().attributes, Value::text(target.attribute), value);
    }
  }

  // Statements

  Flow execute(const Block& block, Scope& scope) {
    for (const Statement& statement : block) {
      const Nesting nesting = state_.deeper();
      state_.step();
      state_.at_line(statement.line);
      const Flow flow =
          std::visit([&](const auto& node) { return execute(node, scope); }, statement.node);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Data& data, Scope& /*scope*/) {
    write(data.text);
    return Flow::kNext;
  }

  Flow execute(const Output& output, Scope& scope) {
    const Value value = evaluate(*output.value, scope);
    write(value.is(Kind::kText) ? value.text() : to_text(state_, value));
    return Flow::kNext;
  }

  Flow execute(const Set& set, Scope& scope) {
    assign(set.target, evaluate(*set.value, scope), scope);
    return Flow::kNext;
  }

  Flow execute(const SetBlock& set, Scope& scope) {
    Scope inner(&scope);
    Scope filtered(&scope);
    filtered.set(kBlockText, captured(set.body, inner));
    assign(set.target, evaluate(*set.value, filtered), scope);
    return Flow::kNext;
  }

  Flow execute(const If& conditional, Scope& scope) {
    for (const auto& [condition, block] : conditional.branches) {
      if (truth(evaluate(*condition, scope))) return execute(block, scope);
    }
    return execute(conditional.otherwise, scope);
  }

  Flow execute(const For& node, Scope& scope) {
    auto& loop = state_.make<Loop>();
    loop.candidates = elements(state_, evaluate(*node.sequence, scope));
    if (node.condition != nullptr) {
      loop.condition = [&](const Value& candidate) {
        Scope inner(&scope);
        assign(node.target, candidate, inner);
        return truth(evaluate(*node.condition, inner));
      };
    }
    // As Jinja has it: an iteration that `break` or `continue` ends does not keep `else` from
    // running.
    bool runs_else = true;
    while (loop.look(loop.n_begun + 1)) {
      state_.step();
      Scope inner(&scope);
      inner.set("loop", Value::loop(loop));
      assign(node.target, Value(loop.passed[loop.n_begun++]), inner);
      const Flow flow = execute(node.body, inner);
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNext) runs_else = false;
    }
    // The condition refers to this call, and a variable may keep the loop.
    loop.condition = nullptr;
    loop.n_asked = loop.candidates.size();
    Scope inner(&scope);
    return runs_else ? execute(node.otherwise, inner) : Flow::kNext;
  }

  Flow execute(const Macro& macro, Scope& scope) {
    auto& made = state_.make<Callable>();
    made.macro = &macro;
    scope.set(macro.name, Value::callable(made));
    return Flow::kNext;
  }

  Flow execute(const Generation& generation, Scope& scope) {
    Scope inner(&scope);
    return execute(generation.body, inner);
  }

  Flow execute(const Break& /*node*/, Scope& /*scope*/) { return Flow::kBreak; }
  Flow execute(const Continue& /*node*/, Scope& /*scope*/) { return Flow::kContinue; }

  // Expressions

  Value evaluate(const Expression& expression, Scope& scope) {
    const Nesting nesting = state_.deeper();
    state_.step();
    const std::uint32_t line = state_.at_line(expression.line);
    Value value =
        std::visit([&](const auto& node) { return evaluate(node, scope); }, expression.node);
    state_.at_line(line);
    return value;
  }

  Value evaluate(const Literal& literal, Scope& /*scope*/) { return literal.value; }

  Value evaluate(const Name& name, Scope& scope) {
    if (const Value* found = scope.find(name.name)) return *found;
    if (const Builtin* function = find_builtin(functions(), name.name)) {
      return state_.callable(*function);
    }
    // Undefined would be a wrong value: Jinja has them.
    static constexpr std::array<std::string_view, 7> kAbsent = {
        "caller", "varargs", "kwargs", "self", "lipsum", "cycler", "joiner"};
    if (std::find(kAbsent.begin(), kAbsent.end(), name.name) != kAbsent.end()) {
      state_.unsupported("the variable '{}'", name.name);
    }
    return Value::undefined(name.name);
  }

  Value evaluate(const ListDisplay& list, Scope& scope) {
    std::vector<Value> items;
    items.reserve(list.items.size());
    for (const ExpressionPtr item : list.items) items.push_back(evaluate(*item, scope));
    return state_.sequence(list.is_tuple ? Sequence::Form::kTuple : Sequence::Form::kList,
                           std::move(items));
  }

  Value evaluate(const DictDisplay& dict, Scope& scope) {
    auto& mapping = state_.make<Mapping>();
    for (const auto& [key, value] : dict.entries) {
      const Value made_key = evaluate(*key, scope);
      set_entry(state_, mapping, made_key, evaluate(*value, scope));
    }
    return Value::mapping(mapping);
  }

  Value evaluate(const Unary& unary, Scope& scope) {
    const Value operand = evaluate(*unary.operand, scope);
    if (unary.sign == Unary::Sign::kNot) return Value::boolean(!truth(operand));
    if (unary.sign == Unary::Sign::kMinus) return negate(state_, operand);
    // Python's + of a number is the number, of a boolean an integer, of anything else refused.
    return operand.is(Kind::kFloat)
               ? operand
               : binary_operation(state_, Operator::kAdd, Value::integer(0), operand);
  }

  Value evaluate(const Binary& binary, Scope& scope) {
    const Value left = evaluate(*binary.left, scope);
    if (binary.op == Operator::kAnd && !truth(left)) return left;
    if (binary.op == Operator::kOr && truth(left)) return left;
    const Value right = evaluate(*binary.right, scope);
    return binary_operation(state_, binary.op, left, right);
  }

  Value evaluate(const Conditional& conditional, Scope& scope) {
    if (truth(evaluate(*conditional.condition, scope))) return evaluate(*conditional.then, scope);
    if (conditional.otherwise != nullptr) return evaluate(*conditional.otherwise, scope);
    return Value::undefined("the other side of an 'if' without 'else'");
  }

  Value evaluate(const Attribute& attribute, Scope& scope) {
    return get_attribute(state_, evaluate(*attribute.object, scope), attribute.name);
  }

  Value evaluate(const Item& item, Scope& scope) {
    const Value object = evaluate(*item.object, scope);
    return get_item(state_, object, evaluate(*item.index, scope));
  }

  Value evaluate(const Slice& slice, Scope& scope) {
    const Value object = evaluate(*slice.object, scope);
    const auto bound = [&](ExpressionPtr expression) -> std::optional<std::int64_t> {
      const Value value = expression != nullptr ? evaluate(*expression, scope) : Value::none();
      if (value.is(Kind::kNone)) return std::nullopt;
      return as_integer(state_, value, "a bound of a slice");
    };
    const auto start = bound(slice.start);
    const auto stop = bound(slice.stop);
    return get_slice(state_, object, {.start = start, .stop = stop, .step = bound(slice.step)});
  }

  Value evaluate(const Filter& filter, Scope& scope) {
    const Value input = evaluate(*filter.input, scope);
    const Value value =
        call_builtin(state_, *filter.builtin, input, evaluated(filter.arguments, scope));
    return filter.is_negated ? Value::boolean(!truth(value)) : value;
  }

  Value evaluate(const Call& call, Scope& scope) {
    // The common case, a method of a value, without an object for the method.
    if (const auto* attribute = std::get_if<Attribute>(&call.callee->node)) {
      const Value object = evaluate(*attribute->object, scope);
      if (const Builtin* method = find_method(state_, object, attribute->name)) {
        return call_builtin(state_, *method, object, evaluated(call.arguments, scope));
      }
      const Value callee = get_attribute(state_, object, attribute->name);
      return call_value(callee, evaluated(call.arguments, scope));
    }
    const Value callee = evaluate(*call.callee, scope);
    return call_value(callee, evaluated(call.arguments, scope));
  }

  Arguments evaluated(const CallArguments& arguments, Scope& scope) {
    Arguments given;
    for (const ExpressionPtr value : arguments.positional) {
      given.positional.push_back(evaluate(*value, scope));
    }
    for (const auto& [name, value] : arguments.named) {
      given.named.emplace_back(name, evaluate(*value, scope));
    }
    return given;
  }

  Value call_value(const Value& callee, Arguments arguments) {
    if (callee.is(Kind::kCallable)) {
      const Callable& callable = callee.callable();
      if (callable.macro != nullptr) return call_macro(*callable.macro, std::move(arguments));
      return call_builtin(state_, *callable.builtin, callable.self, std::move(arguments));
    }
    if (callee.is(Kind::kUndefined) && callee.undefined_name().name) {
      state_.fault("'{}' is undefined, so it cannot be called", *callee.undefined_name().name);
    }
    state_.fault("a {} cannot be called", type_name(callee));
  }

  // The text of its body, in a scope of its own within that of the template.
  Value call_macro(const Macro& macro, Arguments arguments) {
    const Nesting nesting = state_.deeper();
    std::vector<std::string_view> names;
    for (const auto& parameter : macro.parameters) names.push_back(parameter.first);
    bind(state_, macro.name, {names, 0}, arguments);
    Scope scope(&globals_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      Value value = std::move(arguments.positional[i]);
      if (value.is_absent()) {
        const ExpressionPtr otherwise = macro.parameters[i].second;
        value = otherwise != nullptr ? evaluate(*otherwise, scope) : Value::undefined(names[i]);
      }
      scope.set(names[i], std::move(value));
    }
    return captured(macro.body, scope);
  }

  RenderState& state_;
  Scope& globals_;
  std::string out_;
};

}  // namespace

struct Template::Parsed {
  std::string where;
  Syntax syntax;
};

Template Template::parse(std::string_view text, std::string_view where) {
  if (text.size() > kMaxTemplateBytes) {
    throw Error(ErrorCode::kLimit, fmt::format("a template of {} bytes, at most {} are accepted",
                                               text.size(), kMaxTemplateBytes))
        .in_file(where);
  }
  if (!is_utf8(text)) {
    throw Error(ErrorCode::kCorrupt, "the template is not valid UTF-8").in_file(where);
  }
  try {
    return Template(std::make_shared<const Parsed>(
        Parsed{.where = std::string(where), .syntax = parse_syntax(text)}));
  } catch (Error& error) {
    throw error.in_file(where);
  }
}

std::string Template::render(const formats::Json& variables, std::string_view now,
                             const RenderLimits& limits) const {
  INGOT_CHECK(variables.is_object());
  try {
    RenderState state(limits, now);
    Scope globals(nullptr);
    for (const auto& [name, value] : variables.get_ref<const formats::Json::object_t&>()) {
      globals.set(name, value_from_json(state, value));
    }
    return Interpreter(state, globals).run(parsed_->syntax.block);
  } catch (Error& error) {
    throw error.in_file(parsed_->where);
  }
}

}  // namespace ingot::inference::jinja
