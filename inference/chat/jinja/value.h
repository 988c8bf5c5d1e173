#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ingot::inference::jinja {

class Value;
struct Builtin;
struct Macro;

/// A string in UTF-8. It never changes, so copies share it.
using Text = std::shared_ptr<const std::string>;

/// The value of a name, key or attribute that is not there; `name` is the one that was looked for,
/// or null for an argument that was not given.
struct Undefined {
  Text name;
  bool operator==(const Undefined&) const = default;
};

struct None {
  bool operator==(const None&) const = default;
};

/// Base of all values that have an identity and may change. The RenderState of a render owns them
/// and a Value only points to them, so a list that holds itself leaks nothing.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
};

struct Sequence;
struct Mapping;
struct Namespace;
struct Loop;
struct Callable;

/// Kinds of values, in the order of Value's alternatives.
enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBoolean,
  kInteger,
  kFloat,
  kText,
  kSequence,
  kMapping,
  kNamespace,
  kLoop,
  kCallable,
};

/// Any value of a template, with the meaning that Python gives it. A copy is cheap.
class Value {
 public:
  /// An argument that was not given.
  Value() = default;

  static Value undefined(std::string_view name) {
    return Value(Undefined{.name = std::make_shared<const std::string>(name)});
  }
  static Value none() { return Value(None{}); }
  static Value boolean(bool value) { return Value(value); }
  static Value integer(std::int64_t value) { return Value(value); }
  /// A size or place of something in memory.
  static Value count(std::size_t value) { return Value(static_cast<std::int64_t>(value)); }
  static Value real(double value) { return Value(value); }
  static Value text(Text value) { return Value(std::move(value)); }
  static Value text(std::string value) {
    return Value(std::make_shared<const std::string>(std::move(value)));
  }
  static Value sequence(Sequence& value) { return Value(&value); }
  static Value mapping(Mapping& value) { return Value(&value); }
  static Value name_space(Namespace& value) { return Value(&value); }
  static Value loop(Loop& value) { return Value(&value); }
  static Value callable(Callable& value) { return Value(&value); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const { return this->kind() == kind; }
  /// True for an argument that was not given.
  [[nodiscard]] bool is_absent() const { return is(Kind::kUndefined) && !undefined_name().name; }
  /// REQUIRES of all below: a value of that kind.
  [[nodiscard]] const Undefined& undefined_name() const { return std::get<Undefined>(data_); }
  [[nodiscard]] bool boolean() const { return std::get<bool>(data_); }
  [[nodiscard]] std::int64_t integer() const { return std::get<std::int64_t>(data_); }
  [[nodiscard]] double real() const { return std::get<double>(data_); }
  [[nodiscard]] const std::string& text() const { return *std::get<Text>(data_); }
  [[nodiscard]] Sequence& sequence() const { return *std::get<Sequence*>(data_); }
  [[nodiscard]] Mapping& mapping() const { return *std::get<Mapping*>(data_); }
  [[nodiscard]] Namespace& name_space() const { return *std::get<Namespace*>(data_); }
  [[nodiscard]] Loop& loop() const { return *std::get<Loop*>(data_); }
  [[nodiscard]] Callable& callable() const { return *std::get<Callable*>(data_); }
  /// True if both values are the same object; only values with an identity can be.
  [[nodiscard]] bool is_same_object(const Value& other) const {
    return kind() >= Kind::kSequence && data_ == other.data_;
  }

 private:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, Text, Sequence*, Mapping*,
                            Namespace*, Loop*, Callable*>;
  template <typename T>
  explicit Value(T value) : data_(std::in_place_type<T>, std::move(value)) {}

  Data data_;
};

/// True if the value is an integer or a boolean, which is an integer in Python.
inline bool is_whole(const Value& value) {
  return value.is(Kind::kInteger) || value.is(Kind::kBoolean);
}
inline bool is_number(const Value& value) {
  return is_whole(value) || value.is(Kind::kFloat);
}
/// REQUIRES: is_whole.
inline std::int64_t whole(const Value& value) {
  return value.is(Kind::kBoolean) ? std::int64_t{value.boolean()} : value.integer();
}
/// REQUIRES: is_number.
inline double real(const Value& value) {
  return value.is(Kind::kFloat) ? value.real() : static_cast<double>(whole(value));
}

/// A list and similar objects of Python: they differ in the operations that they have.
struct Sequence final : Object {
  enum class Form : std::uint8_t {
    kList,
    kTuple,
    kRange,     ///< last form whose elements have an index
    kView,      ///< results of .items(), .keys() and .values() of a mapping
    kIterator,  ///< results of most filters over sequences; each can be read once
  };
  Form form = Form::kList;
  std::vector<Value> items;
};

inline bool is_form(const Value& value, Sequence::Form form) {
  return value.is(Kind::kSequence) && value.sequence().form == form;
}
/// True if the value is a list, tuple or range, whose elements have an index.
inline bool has_places(const Value& value) {
  return value.is(Kind::kSequence) && value.sequence().form <= Sequence::Form::kRange;
}
/// True if the value is a list or a tuple, which can be printed.
inline bool is_list_or_tuple(const Value& value) {
  return has_places(value) && value.sequence().form != Sequence::Form::kRange;
}

/// A dict: keys in the order of their insertion.
struct Mapping final : Object {
  std::vector<std::pair<Value, Value>> entries;
};

/// namespace(): the target of assignments from inside a loop. Its keys are strings.
struct Namespace final : Object {
  Mapping attributes;
};

/// A running `for` and its variable `loop`. The condition behind `if` is asked no earlier than
/// Jinja asks it: element by element, and ahead only when the template looks ahead.
struct Loop final : Object {
  std::vector<Value> candidates, passed;
  std::function<bool(const Value&)> condition;  ///< empty: every candidate passes
  std::size_t n_asked = 0;                      ///< candidates that the condition has seen
  std::size_t n_begun = 0;                      ///< elements of `passed` whose iteration has begun

  /// Looks ahead until `n` candidates have passed; false when there are not so many.
  bool look(std::size_t n) {
    while (passed.size() < n && n_asked < candidates.size()) {
      const Value candidate = candidates[n_asked++];
      if (!condition || condition(candidate)) passed.push_back(candidate);
    }
    return passed.size() >= n;
  }
};

/// A function that a template may call.
struct Callable final : Object {
  const Builtin* builtin = nullptr;  ///< a function, or a method of `self`
  Value self;
  const Macro* macro = nullptr;  ///< the macro; null for a built-in
};

}  // namespace ingot::inference::jinja
