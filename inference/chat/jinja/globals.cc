#include "inference/chat/jinja/globals.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/callable.h"
#include "inference/chat/jinja/date_text.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/text_form.h"

namespace ingot::inference::jinja {
namespace {

// Of transformers' sandbox.
constexpr std::uint64_t kMaxRange = 100'000;
constexpr std::size_t kMaxMessageBytes = 2000;

// The one mapping that dict() and namespace() may be given.
const Mapping* only_mapping(RenderState& state, const Arguments& arguments,
                            std::string_view callee) {
  if (arguments.positional.empty()) return nullptr;
  if (arguments.positional.size() > 1) {
    state.fault(fmt::format("'{}' takes at most 1 argument without a name", callee));
  }
  const Value& other = arguments.positional[0];
  if (!other.is(Kind::kMapping)) {
    state.unsupported(fmt::format("'{}' of a {}", callee, type_name(other)));
  }
  return &other.mapping();
}

void set_attribute(RenderState& state, Namespace& target, std::string name, const Value& value) {
  for (auto& [key, old] : target.entries) {
    if (key != name) continue;
    old = value;
    return;
  }
  state.charge(sizeof(Value) + name.size());
  target.entries.emplace_back(std::move(name), value);
}

Value make_namespace(RenderState& state, Arguments&& arguments) {
  Namespace& made = state.make<Namespace>();
  if (const Mapping* other = only_mapping(state, arguments, "namespace")) {
    for (const auto& [key, value] : other->entries) {
      set_attribute(state, made, as_string(state, key, "a name"), value);
    }
  }
  for (auto& [name, value] : arguments.named) set_attribute(state, made, name, value);
  return Value::name_space(made);
}

Value make_dict(RenderState& state, Arguments&& arguments) {
  Mapping& made = state.make<Mapping>();
  if (const Mapping* other = only_mapping(state, arguments, "dict")) {
    state.charge(other->entries.size() * 2 * sizeof(Value));
    made.entries = other->entries;
  }
  for (const auto& [name, value] : arguments.named) {
    set_entry(state, made, state.text(std::string_view(name)), value);
  }
  return Value::mapping(made);
}

Value range(RenderState& state, Arguments&& arguments) {
  static constexpr Signature kSignature = {.names = {"start", "stop", "step"}, .n_required = 1};
  const Bound bound = bind(state, "range", kSignature, std::move(arguments));
  const std::int64_t first = as_integer(state, *bound[0], "a bound of 'range'");
  const std::int64_t start = bound[1] ? first : 0;
  const std::int64_t stop = bound[1] ? as_integer(state, *bound[1], "a bound of 'range'") : first;
  const std::int64_t step = bound[2] ? as_integer(state, *bound[2], "the step of 'range'") : 1;
  if (step == 0) state.fault("the step of 'range' is zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() == kMaxRange) {
      state.beyond(fmt::format("a range of more than {} numbers", kMaxRange));
    }
    state.step();
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::sequence(state.sequence(Sequence::Form::kRange, std::move(items)));
}

Value raise_exception(RenderState& state, Arguments&& arguments) {
  static constexpr Signature kSignature = {.names = {"message"}, .n_required = 1};
  const Bound bound = bind(state, "raise_exception", kSignature, std::move(arguments));
  std::string message = to_text(state, *bound[0]);
  if (message.size() > kMaxMessageBytes) message.resize(kMaxMessageBytes);
  state.fault(fmt::format("the template refuses: {}", message));
}

Value strftime_now(RenderState& state, Arguments&& arguments) {
  static constexpr Signature kSignature = {.names = {"format"}, .n_required = 1};
  const Bound bound = bind(state, "strftime_now", kSignature, std::move(arguments));
  return state.text(date_text(state, as_string(state, *bound[0], "the format of a date")));
}

/// The next of its items each time, from the start again behind the last.
class Cycler final : public Callable {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  Value call(RenderState& state, Arguments&& /*arguments*/) override {
    state.fault("a cycler is no function (call its 'next')");
  }
  Value attribute(RenderState& state, std::string_view name) override;

  Value next() {
    const Value value = current();
    at_ = (at_ + 1) % items_.size();
    return value;
  }
  [[nodiscard]] const Value& current() const { return items_[at_]; }
  void reset() { at_ = 0; }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

class CyclerMethod final : public Callable {
 public:
  CyclerMethod(Cycler& cycler, bool resets) : cycler_(cycler), resets_(resets) {}
  Value call(RenderState& state, Arguments&& arguments) override {
    if (!arguments.empty()) state.fault("a cycler's methods take no arguments");
    if (!resets_) return cycler_.next();
    cycler_.reset();
    return Value::none();
  }

 private:
  Cycler& cycler_;
  bool resets_;
};

Value Cycler::attribute(RenderState& state, std::string_view name) {
  if (name == "current") return current();
  if (name != "next" && name != "reset") return Value::undefined(name);
  return Value::callable(state.make<CyclerMethod>(*this, name == "reset"));
}

Value make_cycler(RenderState& state, Arguments&& arguments) {
  if (!arguments.named.empty()) state.fault("'cycler' has no named arguments");
  if (arguments.positional.empty()) state.fault("'cycler' needs at least one item");
  return Value::callable(state.make<Cycler>(std::move(arguments.positional)));
}

/// Nothing the first time, the separator from then on.
class Joiner final : public Callable {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  Value call(RenderState& state, Arguments&& arguments) override {
    if (!arguments.empty()) state.fault("a joiner takes no arguments");
    return std::exchange(is_used_, true) ? separator_ : state.text(std::string_view());
  }

 private:
  Value separator_;
  bool is_used_ = false;
};

Value make_joiner(RenderState& state, Arguments&& arguments) {
  static constexpr Signature kSignature = {.names = {"sep"}, .n_required = 0};
  const Bound bound = bind(state, "joiner", kSignature, std::move(arguments));
  return Value::callable(
      state.make<Joiner>(bound[0] ? *bound[0] : state.text(std::string_view(", "))));
}

struct GlobalRow {
  std::string_view name;
  Function::Body body;
};
constexpr std::array kRows = {
    GlobalRow{"namespace", make_namespace},
    GlobalRow{"range", range},
    GlobalRow{"dict", make_dict},
    GlobalRow{"raise_exception", raise_exception},
    GlobalRow{"strftime_now", strftime_now},
    GlobalRow{"cycler", make_cycler},
    GlobalRow{"joiner", make_joiner},
};

}  // namespace

Value find_global(RenderState& state, std::string_view name) {
  for (const GlobalRow& row : kRows) {
    if (row.name == name) return Value::callable(state.make<Function>(row.body));
  }
  if (name == "lipsum") state.unsupported("the function 'lipsum'");
  return Value::undefined(name);
}

}  // namespace ingot::inference::jinja
