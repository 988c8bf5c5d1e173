#include "inference/chat/jinja/template.h"

#include <initializer_list>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/syntax.h"

// Statements, and the template that they make.

namespace ingot::inference::jinja {
namespace {

/// The longest published chat templates have a tenth of this.
constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20U;

/// The target of an assignment: a name, an attribute of a namespace, or several targets in a tuple.
struct Target {
  std::string name;
  std::string attribute;        ///< empty: the name itself
  std::vector<Target> members;  ///< targets that the value is unpacked into; empty: it stays whole

  void assign(RenderState& state, const Value& value, Scope& scope) const {
    if (!members.empty()) {
      const std::vector<Value> items = elements(state, value);
      if (items.size() != members.size()) {
        state.fault("{} values for {} variables", items.size(), members.size());
      }
      for (std::size_t i = 0; i < items.size(); ++i) members[i].assign(state, items[i], scope);
    } else if (attribute.empty()) {
      state.set(scope, name, value);
    } else {
      const Value* object = scope.find(name);
      if (object == nullptr || !object->is(Kind::kNamespace)) {
        state.fault("'{}' is no namespace, so '{}' of it cannot be set", name, attribute);
      }
      set_entry(state, object->name_space().attributes, state.text(attribute), value);
    }
  }
};

/// The text of a block on its way through filters. No name of a template is empty, so none is
/// hidden.
constexpr std::string_view kBlockText;

struct For {
  Target target;
  ExpressionPtr sequence = nullptr;
  ExpressionPtr condition = nullptr;  // may be null
  Block body, otherwise;

  Flow operator()(RenderState& state, Scope& scope) const {
    auto& loop = state.make<Loop>();
    loop.candidates = elements(state, sequence->evaluate(state, scope));
    state.reserve(loop.passed, loop.candidates.size());
    if (condition != nullptr) {
      loop.condition = [&](const Value& candidate) {
        Scope inner(&scope);
        target.assign(state, candidate, inner);
        return truth(condition->evaluate(state, inner));
      };
    }
    // In Jinja an iteration that `break` or `continue` ends does not keep `else` from running.
    bool runs_else = true;
    while (loop.look(loop.n_begun + 1)) {
      state.step();
      Scope inner(&scope);
      state.set(inner, "loop", Value::loop(loop));
      target.assign(state, Value(loop.passed[loop.n_begun++]), inner);
      const Flow flow = execute(body, state, inner);
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNext) runs_else = false;
    }
    // Clear the condition: it captures this call's locals, and a variable may keep the loop longer.
    loop.condition = nullptr;
    loop.n_asked = loop.candidates.size();
    Scope inner(&scope);
    return runs_else ? execute(otherwise, state, inner) : Flow::kNext;
  }
};

class Parser {
 public:
  Parser(std::string_view source, std::deque<Expression>& expressions)
      : parsing_{.in = TokenCursor(tokenize(source)), .expressions = expressions} {}

  Block run() {
    Block block = statements({});
    if (in_.current().kind != TokenKind::kEnd) in_.fail_expected("a statement");
    return block;
  }

 private:
  using Run = std::function<Flow(RenderState&, Scope&)>;

  // Parses statements up to a block tag that starts with one of the words, which is then current,
  // or to the end.
  Block statements(std::initializer_list<std::string_view> ends) {
    const Nesting nesting = parsing_.deeper();
    Block block;
    while (in_.current().kind != TokenKind::kEnd) {
      const std::uint32_t first_line = in_.line();
      if (in_.at("{%") && is_one_of(in_.ahead(), ends)) {
        in_.next();
        return block;
      }
      if (in_.current().kind == TokenKind::kData) {
        block.push_back({.run = data(), .line = first_line});
      } else if (in_.skip("{%")) {
        block.push_back({.run = tag(), .line = first_line});
        in_.expect("%}");
      } else {
        in_.expect("{{");
        block.push_back({.run = output(), .line = first_line});
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

  // Parses the body of a statement with a scope of its own; takes the word that ends it.
  Block inner_body(std::string_view end) {
    ++n_scopes_;
    Block block = body({end});
    --n_scopes_;
    in_.next();
    return block;
  }

  Run data() {
    return [text = in_.next().text](RenderState& state, Scope&) {
      state.write(text);
      return Flow::kNext;
    };
  }

  Run output() {
    return [value = parse_tuple(parsing_, true)](RenderState& state, Scope& scope) {
      const Value written = value->evaluate(state, scope);
      state.write(written.is(Kind::kText) ? written.text() : to_text(state, written));
      return Flow::kNext;
    };
  }

  // Parses from the word of a statement up to the end of its last tag, which is not taken.
  Run tag() {
    if (in_.current().kind != TokenKind::kName) in_.fail_expected("a statement");
    if (in_.skip("set")) return set();
    if (in_.skip("if")) return conditional();
    if (in_.skip("for")) return loop();
    if (in_.skip("macro")) return macro();
    if (in_.skip("generation")) {  // transformers'
      return [block = inner_body("endgeneration")](RenderState& state, Scope& scope) {
        Scope inner(&scope);
        return execute(block, state, inner);
      };
    }
    if (in_.at("break") || in_.at("continue")) {
      if (n_loops_ == 0) in_.fail("'{}' outside of a loop", in_.current().text);
      const Flow flow = in_.next().is("break") ? Flow::kBreak : Flow::kContinue;
      return [flow](RenderState&, Scope&) { return flow; };
    }
    const std::string& word = in_.current().text;
    if (word.starts_with("end") || word == "else" || word == "elif") {
      in_.fail("'{}' without its beginning", word);
    }
    in_.unsupported("the statement '{}'", word);
  }

  Run set() {
    Target to = target(true);
    if (in_.skip("=")) {
      return [to = std::move(to), value = parse_tuple(parsing_, true)](RenderState& state,
                                                                       Scope& scope) {
        to.assign(state, value->evaluate(state, scope), scope);
        return Flow::kNext;
      };
    }
    // {% set x | filter %}...{% endset %}
    ExpressionPtr value = parse_filters(parsing_, kBlockText);
    return [to = std::move(to), value, block = inner_body("endset")](RenderState& state,
                                                                     Scope& scope) {
      Scope inner(&scope);
      Scope filtered(&scope);
      state.set(filtered, kBlockText, captured(block, state, inner));
      to.assign(state, value->evaluate(state, filtered), scope);
      return Flow::kNext;
    };
  }

  Run conditional() {
    std::vector<std::pair<ExpressionPtr, Block>> branches;
    Block otherwise;
    do {
      ExpressionPtr condition = parse_tuple(parsing_, false);
      branches.emplace_back(condition, body({"elif", "else", "endif"}));
    } while (in_.skip("elif"));
    if (in_.skip("else")) otherwise = body({"endif"});
    in_.expect("endif");
    return [branches = std::move(branches), otherwise = std::move(otherwise)](RenderState& state,
                                                                              Scope& scope) {
      for (const auto& [condition, block] : branches) {
        if (truth(condition->evaluate(state, scope))) return execute(block, state, scope);
      }
      return execute(otherwise, state, scope);
    };
  }

  Run loop() {
    For made;
    made.target = target(false);
    in_.expect("in");
    made.sequence = parse_tuple(parsing_, false);
    if (in_.skip("if")) made.condition = parse_expression(parsing_);
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

  Run macro() {
    if (n_scopes_ != 0) in_.unsupported("a macro inside a loop, block or macro");
    Macro made{.name = in_.expect_name("the name of a macro"), .parameters = {}, .body = {}};
    in_.expect("(");
    while (!in_.at(")")) {
      std::string name = in_.expect_name("a parameter");
      ExpressionPtr value = in_.skip("=") ? parse_expression(parsing_) : nullptr;
      if (value == nullptr && !made.parameters.empty() && made.parameters.back().second) {
        in_.fail("a parameter without a default behind one with a default");
      }
      made.parameters.emplace_back(std::move(name), value);
      if (!in_.skip(",")) break;
    }
    in_.expect(")");
    made.body = inner_body("endmacro");
    return [made = std::move(made)](RenderState& state, Scope& scope) {
      auto& callable = state.make<Callable>();
      callable.macro = &made;
      state.set(scope, made.name, Value::callable(callable));
      return Flow::kNext;
    };
  }

  Target one_target(bool attributes) {
    if (in_.skip("(")) {
      const Nesting nesting = parsing_.deeper();
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

  // The target of `set` and `for`; an attribute of a namespace where `attributes` is true.
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

  Parsing parsing_;
  TokenCursor& in_ = parsing_.in;
  std::size_t n_loops_ = 0;   // loops that are open here, within the macro
  std::size_t n_scopes_ = 0;  // loops, macros and blocks that are open here
};

}  // namespace

Flow execute(const Block& block, RenderState& state, Scope& scope) {
  for (const Statement& statement : block) {
    const Nesting nesting = state.deeper();
    state.step();
    state.at_line(statement.line);
    const Flow flow = statement.run(state, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Value captured(const Block& block, RenderState& state, Scope& scope) {
  std::string outer = std::exchange(state.out, {});
  execute(block, state, scope);
  return state.text(std::exchange(state.out, std::move(outer)));
}

struct Template::Parsed {
  std::string where;
  std::deque<Expression> expressions;
  Block block;
};

Template Template::parse(std::string_view text, std::string_view where) {
  if (text.size() > kMaxTemplateBytes) {
    throw Error(ErrorCode::kLimit, "a template of {} bytes, at most {} are accepted", text.size(),
                kMaxTemplateBytes)
        .in_file(where);
  }
  if (!is_utf8(text)) {
    throw Error(ErrorCode::kCorrupt, "the template is not valid UTF-8").in_file(where);
  }
  const auto parsed = std::make_shared<Parsed>();
  parsed->where = where;
  try {
    parsed->block = Parser(text, parsed->expressions).run();
  } catch (Error& error) {
    throw error.in_file(where);
  }
  return Template(parsed);
}

std::string Template::render(const formats::Json& variables, std::string_view now,
                             const RenderLimits& limits) const {
  INGOT_CHECK(variables.is_object());
  try {
    RenderState state(limits, now);
    for (const auto& [name, value] : variables.get_ref<const formats::Json::object_t&>()) {
      state.set(state.globals, name, value_from_json(state, value));
    }
    execute(parsed_->block, state, state.globals);
    return std::move(state.out);
  } catch (Error& error) {
    throw error.in_file(parsed_->where);
  }
}

}  // namespace ingot::inference::jinja
