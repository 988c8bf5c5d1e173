#include "inference/chat/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/callable.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/loop_state.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/text_form.h"

namespace ingot::inference::jinja {
namespace {

class MacroFunction final : public Callable {
 public:
  MacroFunction(Interpreter& interpreter, const Macro& macro, const Scope& globals)
      : interpreter_(interpreter), macro_(macro), globals_(globals) {}
  Value call(RenderState& /*state*/, Arguments&& arguments) override {
    return interpreter_.call_macro(macro_, globals_, std::move(arguments));
  }

 private:
  Interpreter& interpreter_;
  const Macro& macro_;
  const Scope& globals_;
};

}  // namespace

std::string Interpreter::render(const Block& block, Scope& globals) {
  execute(block, globals);
  return std::move(out_);
}

void Interpreter::write(std::string_view text) {
  if (text.size() > state_.limits().max_output_bytes - out_.size()) {
    state_.beyond(
        fmt::format("the template writes more than {} bytes", state_.limits().max_output_bytes));
  }
  out_ += text;
}

std::string Interpreter::capture(const Block& block, Scope& scope) {
  std::string outer = std::exchange(out_, {});
  execute(block, scope);
  return std::exchange(out_, std::move(outer));
}

Interpreter::Flow Interpreter::execute(const Block& block, Scope& scope) {
  for (const Statement& statement : block) {
    const Flow flow = execute(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Scope& scope) {
  const RenderState::Depth depth(state_);
  state_.step();
  state_.at_line(statement.line);
  return std::visit([&](const auto& node) { return execute_node(node, scope); }, statement.node);
}

Interpreter::Flow Interpreter::execute_node(const Data& data, Scope& /*scope*/) {
  state_.scan(data.text.size());
  write(data.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const Output& output, Scope& scope) {
  const Value value = evaluate(*output.value, scope);
  if (value.is(Kind::kText)) {
    state_.scan(value.text().size());
    write(value.text());
  } else {
    write(to_text(state_, value));
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const Set& set, Scope& scope) {
  assign(set.target, evaluate(*set.value, scope), scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const SetBlock& set, Scope& scope) {
  Scope inner(&scope);
  Value value = state_.text(capture(set.body, inner));
  for (const Filter& filter : set.filters) {
    value = apply_filter(state_, *filter.row, value, evaluate_arguments(filter.arguments, scope));
  }
  assign(set.target, value, scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const If& conditional, Scope& scope) {
  for (const auto& [condition, block] : conditional.branches) {
    if (truth(evaluate(*condition, scope))) return execute(block, scope);
  }
  return execute(conditional.otherwise, scope);
}

Interpreter::Flow Interpreter::execute_node(const For& loop, Scope& scope) {
  LoopState::Condition condition;
  if (loop.condition) {
    condition = [&](const Value& candidate) {
      Scope inner(&scope);
      assign(loop.target, candidate, inner);
      return truth(evaluate(*loop.condition, inner));
    };
  }
  LoopState& state =
      state_.make<LoopState>(elements(state_, evaluate(*loop.sequence, scope)), condition);
  // As Jinja has it: an iteration that `break` or `continue` ends does not keep `else` from
  // running.
  bool runs_else = true;
  while (state.advance()) {
    state_.step();
    Scope inner(&scope);
    inner.set("loop", Value::loop(state));
    assign(loop.target, Value(state.current()), inner);
    const Flow flow = execute(loop.body, inner);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) runs_else = false;
  }
  state.finish();
  if (!runs_else) return Flow::kNext;
  Scope inner(&scope);
  return execute(loop.otherwise, inner);
}

Interpreter::Flow Interpreter::execute_node(const Macro& macro, Scope& scope) {
  scope.set(macro.name, Value::callable(state_.make<MacroFunction>(*this, macro, scope)));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_node(const Break& /*node*/, Scope& /*scope*/) {
  return Flow::kBreak;
}

Interpreter::Flow Interpreter::execute_node(const Continue& /*node*/, Scope& /*scope*/) {
  return Flow::kContinue;
}

Interpreter::Flow Interpreter::execute_node(const Generation& generation, Scope& scope) {
  Scope inner(&scope);
  return execute(generation.body, inner);
}

Value Interpreter::call_macro(const Macro& macro, const Scope& globals, Arguments&& arguments) {
  const RenderState::Depth depth(state_);
  if (arguments.positional.size() > macro.parameters.size()) {
    state_.fault(fmt::format("the macro '{}' takes at most {} arguments, not {}", macro.name,
                             macro.parameters.size(), arguments.positional.size()));
  }
  for (const auto& argument : arguments.named) {
    const std::string& name = argument.first;
    const auto found =
        std::find_if(macro.parameters.begin(), macro.parameters.end(),
                     [&](const Macro::Parameter& parameter) { return parameter.name == name; });
    if (found == macro.parameters.end()) {
      state_.fault(fmt::format("the macro '{}' has no argument '{}'", macro.name, name));
    }
    const auto place = static_cast<std::size_t>(found - macro.parameters.begin());
    if (place < arguments.positional.size()) {
      state_.fault(fmt::format("argument '{}' of the macro '{}' is given twice", name, macro.name));
    }
  }
  Scope scope(&globals);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Macro::Parameter& parameter = macro.parameters[i];
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& argument) { return argument.first == parameter.name; });
    if (i < arguments.positional.size()) {
      scope.set(parameter.name, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      scope.set(parameter.name, named->second);
    } else if (parameter.value) {
      scope.set(parameter.name, evaluate(*parameter.value, scope));
    } else {
      scope.set(parameter.name, Value::undefined(parameter.name));
    }
  }
  return state_.text(capture(macro.body, scope));
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (!target.members.empty()) {
    const std::vector<Value> items = elements(state_, value);
    if (items.size() != target.members.size()) {
      state_.fault(fmt::format("{} values for {} variables", items.size(), target.members.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.members[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope.set(target.name, value);
    return;
  }
  const Value* object = scope.find(target.name);
  if (object == nullptr || !object->is(Kind::kNamespace)) {
    state_.fault(fmt::format("'{}' is no namespace, so '{}' of it cannot be set", target.name,
                             target.attribute));
  }
  auto& entries = object->name_space().entries;
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.first == target.attribute;
  });
  if (found != entries.end()) {
    found->second = value;
  } else {
    state_.charge(sizeof(Value) + target.attribute.size());
    entries.emplace_back(target.attribute, value);
  }
}

}  // namespace ingot::inference::jinja
