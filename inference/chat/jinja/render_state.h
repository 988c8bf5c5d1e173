#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "inference/chat/jinja/template.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// Throws `code` with the line of the template in front of the message.
template <typename... Arguments>
[[noreturn]] void fail_at(ErrorCode code, std::uint32_t line,
                          fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::string message = fmt::format(format, std::forward<Arguments>(arguments)...);
  throw Error(code, "line {}: {}", line, message);
}

/// Throws with the line of the template that `line()` of the class tells.
template <class Derived>
class Faults {
 public:
  /// Throws kInvalidArgument: the template does something that Python would refuse.
  template <typename... Arguments>
  [[noreturn]] void fault(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    fail_at(ErrorCode::kInvalidArgument, at(), format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kCorrupt: it is no template.
  template <typename... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    fail_at(ErrorCode::kCorrupt, at(), format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kUnsupported: legal, but outside the subset.
  template <typename... Arguments>
  [[noreturn]] void unsupported(fmt::format_string<Arguments...> format,
                                Arguments&&... arguments) const {
    fail_at(ErrorCode::kUnsupported, at(), format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kLimit.
  template <typename... Arguments>
  [[noreturn]] void beyond(fmt::format_string<Arguments...> format,
                           Arguments&&... arguments) const {
    fail_at(ErrorCode::kLimit, at(), format, std::forward<Arguments>(arguments)...);
  }

 private:
  [[nodiscard]] std::uint32_t at() const { return static_cast<const Derived*>(this)->line(); }
};

/// Counts one level more for as long as this lives. Throws kLimit with the line beyond `max`.
class Nesting {
 public:
  Nesting(std::size_t& depth, std::size_t max, std::uint32_t line) : depth_(depth) {
    if (depth == max) {
      fail_at(ErrorCode::kLimit, line, "more than {} levels inside each other", max);
    }
    ++depth_;
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  std::size_t& depth_;
};

/// The variables of a template, a loop's body, a macro's body or a block. A `set` stays in its own
/// scope; an `if` has none.
class Scope {
 public:
  explicit Scope(const Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Finds a variable in this scope or one around it; null without it.
  [[nodiscard]] const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }

 private:
  friend class RenderState;

  const Scope* outer_;
  std::map<std::string_view, Value> variables_;
};

/// The state that the parts of one render share: its output, its outermost variables, its current
/// line, its remaining limits, and the objects it made.
class RenderState : public Faults<RenderState> {
 public:
  /// `now` is the answer of strftime_now, as `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`, or empty.
  RenderState(const RenderLimits& limits, std::string_view now) : limits_(limits), now_(now) {}

  /// Sets the line of the template that is at work, for messages; returns the one before.
  std::uint32_t at_line(std::uint32_t line) { return std::exchange(line_, line); }
  [[nodiscard]] std::uint32_t line() const { return line_; }
  [[nodiscard]] std::string_view now() const { return now_; }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }

  /// Appends to `out`; throws kLimit beyond its limit.
  void write(std::string_view text) {
    scan(text.size());
    if (text.size() > limits_.max_output_bytes - out.size()) {
      beyond("the template writes more than {} bytes", limits_.max_output_bytes);
    }
    append(out, text);
  }

  Scope globals{nullptr};
  std::string out;

  void step(std::uint64_t n = 1) {
    constexpr std::uint64_t kStepsUnasked = 1024;
    // Both are far below 2^63: n counts things in memory.
    if (n_steps_ / kStepsUnasked != (n_steps_ + n) / kStepsUnasked) StopScope::check();
    n_steps_ += n;
    if (n_steps_ > limits_.max_steps) {
      beyond("the template takes more than {} steps", limits_.max_steps);
    }
  }
  /// Counts the steps of a look at text of this size.
  void scan(std::size_t n_bytes) { step(n_bytes / 64); }
  /// REQUIRES: the call comes before so much is allocated. The functions below charge their own
  /// allocations; other code that allocates calls this.
  void charge(std::uint64_t n_bytes) {
    if (n_bytes > limits_.max_made_bytes || n_made_bytes_ > limits_.max_made_bytes - n_bytes) {
      beyond("the template makes more than {} bytes", limits_.max_made_bytes);
    }
    n_made_bytes_ += n_bytes;
    step(n_bytes / 64);
  }

  /// Returns the bytes that charge() still allows.
  [[nodiscard]] std::uint64_t left() const { return limits_.max_made_bytes - n_made_bytes_; }

  /// Makes room for `n` items in all.
  template <typename T>
  void reserve(std::vector<T>& items, std::size_t n) {
    if (n <= items.capacity()) return;
    charge(n * sizeof(T) + kAllocation);
    items.reserve(n);
  }
  template <typename T>
  void push(std::vector<T>& items, T item) {
    constexpr std::size_t kLeast = 4;
    if (items.size() == items.capacity()) reserve(items, std::max(kLeast, 2 * items.size()));
    items.push_back(std::move(item));
  }
  /// REQUIRES: `text` is no part of `to`.
  void append(std::string& to, std::string_view text) {
    const std::size_t n = to.size() + text.size();
    if (n > to.capacity()) {
      const std::size_t room = std::max(n, 2 * to.capacity());
      charge(room + kAllocation);
      to.reserve(room);
    }
    to += text;
  }
  /// Sets a variable. REQUIRES: the name outlives the scope.
  void set(Scope& scope, std::string_view name, Value value) {
    constexpr std::size_t kLinks = 4 * sizeof(void*);  // links of a tree's node
    const auto [place, is_new] = scope.variables_.try_emplace(name);
    if (is_new) charge(sizeof(*place) + kLinks + kAllocation);
    place->second = std::move(value);
  }

  Value text(std::string value) {
    charge(value.size() + kText);
    return Value::text(std::move(value));
  }
  Value text(std::string_view value) {
    charge(value.size() + kText);
    return Value::text(std::string(value));
  }
  /// Joins two texts. Gathering a conversation this way is common: no byte is charged twice.
  Value joined(std::string_view left, std::string_view right) {
    charge(left.size() + right.size() + kText);
    std::string text;
    text.reserve(left.size() + right.size());
    return Value::text(std::move(text.append(left).append(right)));
  }
  Value undefined(std::string_view name) {
    charge(name.size() + kText);
    return Value::undefined(name);
  }
  /// REQUIRES: the items were charged, by reserve() or push().
  Value sequence(Sequence::Form form, std::vector<Value> items) {
    auto& made = make<Sequence>();
    made.form = form;
    made.items = std::move(items);
    return Value::sequence(made);
  }
  /// Makes a function or method; `self` is the value that a method belongs to.
  Value callable(const Builtin& builtin, Value self = {}) {
    auto& made = make<Callable>();
    made.builtin = &builtin;
    made.self = std::move(self);
    return Value::callable(made);
  }

  /// Makes an object that lives as long as this does.
  template <typename T>
  T& make() {
    charge(sizeof(T) + kAllocation);
    auto object = std::make_unique<T>();
    T& made = *object;
    push(objects_, std::unique_ptr<Object>(std::move(object)));
    return made;
  }

  /// Counts one level more for as long as the result lives.
  [[nodiscard]] Nesting deeper() { return {depth_, limits_.max_depth, line_}; }

 private:
  // Bytes that the allocator keeps for itself, and a string with its reference counts.
  static constexpr std::size_t kAllocation = 16, kText = 80;

  RenderLimits limits_;
  std::string now_;
  std::uint32_t line_ = 1;
  std::uint64_t n_steps_ = 0, n_made_bytes_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace ingot::inference::jinja
