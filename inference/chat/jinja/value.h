#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ingot::inference::jinja {

class RenderState;
class Value;

/// A string, UTF-8; immutable, so copies share it.
using Text = std::shared_ptr<const std::string>;

/// The value of a name, key or attribute that is not there; `name` says what was looked for, null
/// when nothing was.
struct Undefined {
  Text name;
};

struct None {};

/// What has an identity and may change. Owned by the RenderState of its render, so that a list that
/// holds itself is no leak; a Value only points to it.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
};

struct Sequence;
struct Mapping;
struct Namespace;
class LoopState;
class Callable;

/// In the order of Value's alternatives.
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

/// Any value of a template, with the meaning that Python gives it. Cheap to copy.
class Value {
 public:
  Value() = default;

  static Value undefined(std::string_view name);
  static Value none() { return Value(None{}); }
  static Value boolean(bool value) { return Value(value); }
  static Value integer(std::int64_t value) { return Value(value); }
  static Value real(double value) { return Value(value); }
  static Value text(Text value) { return Value(std::move(value)); }
  static Value sequence(Sequence& value) { return Value(&value); }
  static Value mapping(Mapping& value) { return Value(&value); }
  static Value name_space(Namespace& value) { return Value(&value); }
  static Value loop(LoopState& value) { return Value(&value); }
  static Value callable(Callable& value) { return Value(&value); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const { return this->kind() == kind; }
  /// None of these may be called on a value of another kind.
  [[nodiscard]] const Undefined& undefined_name() const { return std::get<Undefined>(data_); }
  [[nodiscard]] bool boolean() const { return std::get<bool>(data_); }
  [[nodiscard]] std::int64_t integer() const { return std::get<std::int64_t>(data_); }
  [[nodiscard]] double real() const { return std::get<double>(data_); }
  [[nodiscard]] const std::string& text() const { return *std::get<Text>(data_); }
  [[nodiscard]] Sequence& sequence() const { return *std::get<Sequence*>(data_); }
  [[nodiscard]] Mapping& mapping() const { return *std::get<Mapping*>(data_); }
  [[nodiscard]] Namespace& name_space() const { return *std::get<Namespace*>(data_); }
  [[nodiscard]] LoopState& loop() const { return *std::get<LoopState*>(data_); }
  [[nodiscard]] Callable& callable() const { return *std::get<Callable*>(data_); }

 private:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, Text, Sequence*, Mapping*,
                            Namespace*, LoopState*, Callable*>;
  template <typename T>
  explicit Value(T value) : data_(std::in_place_type<T>, std::move(value)) {}

  Data data_;
};

/// A list and what Python has beside it: they differ in what may be asked of them.
struct Sequence final : Object {
  enum class Form : std::uint8_t {
    kList,
    kTuple,
    kRange,
    kView,      ///< of a mapping: what .items(), .keys() and .values() give
    kIterator,  ///< what most filters over sequences give; read once
  };
  Form form = Form::kList;
  std::vector<Value> items;
};

/// A dict: keys in the order of their insertion.
struct Mapping final : Object {
  std::vector<std::pair<Value, Value>> entries;
};

struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> entries;
};

/// What Python's bool() says.
bool truth(const Value& value);

/// For messages: "string", "list", "mapping", ...
std::string_view type_name(const Value& value);

}  // namespace ingot::inference::jinja
