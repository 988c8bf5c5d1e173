#include <array>
#include <cstdint>
#include <ctime>
#include <string>
#include <utility>

#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

// A limit of transformers' sandbox.
constexpr std::uint64_t kMaxRange = 100'000;
constexpr std::size_t kMaxMessageBytes = 2000;

template <bool (*kTest)(const Value&)>
Value passes(Invocation& call) {
  return Value::boolean(kTest(call.self));
}

template <Kind kKind>
bool is_kind(const Value& value) {
  return value.is(kKind);
}

bool is_defined(const Value& value) {
  return !value.is(Kind::kUndefined);
}

// Mappings and undefined can be indexed and looped over, too.
bool is_container(const Value& value) {
  return value.is(Kind::kText) || value.is(Kind::kMapping) || value.is(Kind::kUndefined);
}

bool is_sequence(const Value& value) {
  return is_container(value) || has_places(value);
}

bool is_iterable(const Value& value) {
  return is_container(value) || value.is(Kind::kSequence) || value.is(Kind::kLoop);
}

Value is_in_container(Invocation& call) {
  return Value::boolean(contains(call.state, call[0], call.self));
}

template <bool kWanted>
Value is_boolean(Invocation& call) {
  return Value::boolean(call.self.is(Kind::kBoolean) && call.self.boolean() == kWanted);
}

template <bool kOdd>
Value has_parity(Invocation& call) {
  if (!is_number(call.self)) {
    call.state.fault("a {} is neither odd nor even", type_name(call.self));
  }
  const Value rest = binary_operation(call.state, Operator::kModulo, call.self, Value::integer(2));
  return Value::boolean(equal(call.state, rest, Value::integer(kOdd ? 1 : 0)));
}

template <bool kWanted>
Value is_equal(Invocation& call) {
  return Value::boolean(equal(call.state, call.self, call[0]) == kWanted);
}

constexpr std::array kTests = {
    Builtin{"undefined", {}, 0, passes<is_kind<Kind::kUndefined>>},
    Builtin{"none", {}, 0, passes<is_kind<Kind::kNone>>},
    Builtin{"string", {}, 0, passes<is_kind<Kind::kText>>},
    Builtin{"integer", {}, 0, passes<is_kind<Kind::kInteger>>},
    Builtin{"float", {}, 0, passes<is_kind<Kind::kFloat>>},
    Builtin{"boolean", {}, 0, passes<is_kind<Kind::kBoolean>>},
    Builtin{"mapping", {}, 0, passes<is_kind<Kind::kMapping>>},
    Builtin{"true", {}, 0, is_boolean<true>},
    Builtin{"false", {}, 0, is_boolean<false>},
    Builtin{"odd", {}, 0, has_parity<true>},
    Builtin{"even", {}, 0, has_parity<false>},
    Builtin{"equalto", {"other"}, 1, is_equal<true>},
    Builtin{"eq", {"other"}, 1, is_equal<true>},
    Builtin{"==", {"other"}, 1, is_equal<true>},
    Builtin{"ne", {"other"}, 1, is_equal<false>},
    Builtin{"!=", {"other"}, 1, is_equal<false>},
    Builtin{"defined", {}, 0, passes<is_defined>},
    Builtin{"number", {}, 0, passes<is_number>},
    Builtin{"sequence", {}, 0, passes<is_sequence>},
    Builtin{"iterable", {}, 0, passes<is_iterable>},
    Builtin{"in", {"seq"}, 1, is_in_container},
};

Value make_namespace(Invocation& call) {
  auto& made = call.state.make<Namespace>();
  update_mapping(call, "namespace", made.attributes);
  return Value::name_space(made);
}

Value make_dict(Invocation& call) {
  auto& made = call.state.make<Mapping>();
  update_mapping(call, "dict", made);
  return Value::mapping(made);
}

Value range(Invocation& call) {
  const RenderState& state = call.state;
  const std::int64_t first = as_integer(state, call[0], "a bound of 'range'");
  const std::int64_t start = call.has(1) ? first : 0;
  const std::int64_t stop = call.has(1) ? as_integer(state, call[1], "a bound of 'range'") : first;
  const std::int64_t step = call.has(2) ? as_integer(state, call[2], "the step of 'range'") : 1;
  if (step == 0) state.fault("the step of 'range' is zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() == kMaxRange) {
      state.beyond("a range of more than {} numbers", kMaxRange);
    }
    call.state.step();
    call.state.push(items, Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return call.state.sequence(Sequence::Form::kRange, std::move(items));
}

Value raise_exception(Invocation& call) {
  const std::string message = to_text(call.state, call[0]);
  call.state.fault("the template refuses: {}", message.substr(0, kMaxMessageBytes));
}

std::string formatted(const std::tm& time, const std::string& format) {
  // strftime tells an empty text from a full buffer by one character more.
  std::string text(format.size() * 32 + 64, '\0');
  text.resize(std::strftime(text.data(), text.size(), (format + "!").c_str(), &time));
  text.pop_back();
  return text;
}

// libc's strftime in the C locale, of the date that the caller gave: nothing here reads a clock.
Value strftime_now(Invocation& call) {
  const RenderState& state = call.state;
  const std::string now(state.now());
  const std::string& format = as_text(state, call[0], "the format of a date");
  if (now.empty()) state.fault("'strftime_now' needs the date, and none was given");
  const char* const shape = now.size() == 10 ? "%Y-%m-%d" : "%Y-%m-%dT%H:%M:%S";
  std::tm time{};
  const char* const end = strptime(now.c_str(), shape, &time);
  if (end != nullptr) timegm(&time);  // the day of the week and of the year
  if (end == nullptr || *end != '\0' || formatted(time, shape) != now) {
    state.fault("the date '{}' is not YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS",
                state.now().substr(0, 40));
  }
  for (std::size_t i = format.find('%'); i != std::string::npos; i = format.find('%', i + 2)) {
    if (format.substr(i + 1).starts_with('-')) ++i;
    // Formats that depend on the time zone or the locale are left out.
    constexpr std::string_view kKnown = "YymdejBbhAauwHIMSpFDTRnt%";
    if (i + 1 == format.size() || kKnown.find(format[i + 1]) == std::string_view::npos) {
      state.unsupported("'{}' as a conversion of 'strftime_now'", format.substr(i, 2));
    }
  }
  call.state.charge(format.size() * 32);
  return call.state.text(formatted(time, format));
}

constexpr std::array kFunctions = {
    Builtin{"namespace", {}, 0, make_namespace, true},
    Builtin{"dict", {}, 0, make_dict, true},
    Builtin{"range", {"start", "stop", "step"}, 1, range},
    Builtin{"raise_exception", {"message"}, 1, raise_exception},
    Builtin{"strftime_now", {"format"}, 1, strftime_now},
};

}  // namespace

std::span<const Builtin> tests() {
  return kTests;
}

std::span<const Builtin> functions() {
  return kFunctions;
}

}  // namespace ingot::inference::jinja
