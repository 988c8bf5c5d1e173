#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// What a template may use up; a template is somebody else's program. Beyond it is kLimit.
struct RenderLimits {
  /// One per statement, operation and element visited, and per 64 bytes of text looked at.
  std::uint64_t max_steps = 20'000'000;
  /// Of everything a render makes, whether it keeps it or not.
  std::uint64_t max_made_bytes = std::uint64_t{1} << 30U;
  std::size_t max_output_bytes = std::size_t{64} << 20U;
  /// Of expressions, statements and macro calls inside each other, and of values inside each other.
  std::size_t max_depth = 400;
};

/// What the parts of one render share: the line it is at, what it may still use up, and the objects
/// it made.
class RenderState {
 public:
  /// `now` is what strftime_now tells, as `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`, or empty.
  RenderState(const RenderLimits& limits, std::string_view now) : limits_(limits), now_(now) {}

  /// The line of the template that is at work, for messages.
  void at_line(std::uint32_t line) { line_ = line; }
  [[nodiscard]] std::uint32_t line() const { return line_; }
  [[nodiscard]] std::string_view now() const { return now_; }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }

  /// The template does what Python would refuse: kInvalidArgument with the line.
  [[noreturn]] void fault(const std::string& message) const;
  /// Legal, but outside the subset: kUnsupported with the line.
  [[noreturn]] void unsupported(const std::string& message) const;
  [[noreturn]] void beyond(const std::string& message) const;

  void step(std::uint64_t n = 1);
  /// Text of this size is looked at.
  void scan(std::size_t n_bytes) { step(n_bytes / 64); }
  /// To be called before so much is allocated.
  void charge(std::uint64_t n_bytes);

  Value text(std::string&& value);
  Value text(std::string_view value) { return text(std::string(value)); }
  Sequence& sequence(Sequence::Form form, std::vector<Value>&& items = {});
  Value list(std::vector<Value>&& items) {
    return Value::sequence(sequence(Sequence::Form::kList, std::move(items)));
  }
  Value tuple(std::vector<Value>&& items) {
    return Value::sequence(sequence(Sequence::Form::kTuple, std::move(items)));
  }
  Value iterator(std::vector<Value>&& items) {
    return Value::sequence(sequence(Sequence::Form::kIterator, std::move(items)));
  }

  /// An object that lives as long as this does.
  template <typename T, typename... Arguments>
  T& make(Arguments&&... arguments) {
    charge(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    T& made = *object;
    objects_.push_back(std::move(object));
    return made;
  }

  /// One level deeper for as long as this lives.
  class Depth {
   public:
    explicit Depth(RenderState& state);
    ~Depth() { --state_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    RenderState& state_;
  };

 private:
  RenderLimits limits_;
  std::string now_;
  std::uint32_t line_ = 1;
  std::uint64_t n_steps_ = 0, n_made_bytes_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace ingot::inference::jinja
