#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/limits.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// What the parts of one render share: the line it is at, what it may still use up, and the objects
/// it made.
class RenderState {
 public:
  /// `now` is what strftime_now tells, as `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`, or empty.
  RenderState(const RenderLimits& limits, std::string_view now) : limits_(limits), now_(now) {}

  /// Sets the line of the template that is at work, for messages; returns the one before.
  std::uint32_t at_line(std::uint32_t line) { return std::exchange(line_, line); }
  [[nodiscard]] std::string_view now() const { return now_; }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }

  /// Throws kInvalidArgument with the line: the template does what Python would refuse.
  template <typename... Arguments>
  [[noreturn]] void fault(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    fail_at(ErrorCode::kInvalidArgument, line_, format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kUnsupported with the line: legal, but outside the subset.
  template <typename... Arguments>
  [[noreturn]] void unsupported(fmt::format_string<Arguments...> format,
                                Arguments&&... arguments) const {
    fail_at(ErrorCode::kUnsupported, line_, format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kLimit with the line.
  template <typename... Arguments>
  [[noreturn]] void beyond(fmt::format_string<Arguments...> format,
                           Arguments&&... arguments) const {
    fail_at(ErrorCode::kLimit, line_, format, std::forward<Arguments>(arguments)...);
  }

  void step(std::uint64_t n = 1);
  /// Text of this size is looked at.
  void scan(std::size_t n_bytes) { step(n_bytes / 64); }
  /// REQUIRES: the call comes before so much is allocated.
  void charge(std::uint64_t n_bytes);

  Value text(std::string value);
  Value text(std::string_view value) { return text(std::string(value)); }
  Value sequence(Sequence::Form form, std::vector<Value> items);
  /// A function or method; `self` is what a method belongs to.
  Value callable(const Builtin& builtin, Value self = {});

  /// An object that lives as long as this does.
  template <typename T>
  T& make() {
    charge(sizeof(T));
    auto object = std::make_unique<T>();
    T& made = *object;
    objects_.push_back(std::move(object));
    return made;
  }

  /// One level deeper for as long as the result lives.
  [[nodiscard]] Nesting deeper() { return {depth_, limits_.max_depth, line_}; }

 private:
  RenderLimits limits_;
  std::string now_;
  std::uint32_t line_ = 1;
  std::uint64_t n_steps_ = 0, n_made_bytes_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace ingot::inference::jinja
