#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// A running `for` and its variable `loop`. The condition behind `if` is asked no earlier than
/// Jinja asks it: element by element, and ahead only when the template looks ahead.
class LoopState final : public Object {
 public:
  using Condition = std::function<bool(const Value&)>;

  /// Without a condition every element passes.
  LoopState(std::vector<Value> candidates, Condition condition);

  /// Moves to the next element; false behind the last.
  bool advance();
  [[nodiscard]] const Value& current() const { return passed_[n_begun_ - 1]; }
  /// The condition refers to what the loop's end destroys.
  void finish();

  /// index, index0, revindex, revindex0, first, last, length, previtem, nextitem.
  std::optional<Value> attribute(RenderState& state, std::string_view name);

 private:
  /// Looks ahead until `n` elements have passed; false when there are not so many.
  bool look(std::size_t n);
  std::size_t length();

  std::vector<Value> candidates_, passed_;
  Condition condition_;
  std::size_t n_asked_ = 0;  // of the candidates
  std::size_t n_begun_ = 0;  // of those that passed
};

}  // namespace ingot::inference::jinja
