#include "inference/chat/jinja/loop_state.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace ingot::inference::jinja {

LoopState::LoopState(std::vector<Value> candidates, Condition condition)
    : candidates_(std::move(candidates)), condition_(std::move(condition)) {}

bool LoopState::look(std::size_t n) {
  while (passed_.size() < n && n_asked_ < candidates_.size()) {
    const Value candidate = candidates_[n_asked_++];
    if (!condition_ || condition_(candidate)) passed_.push_back(candidate);
  }
  return passed_.size() >= n;
}

std::size_t LoopState::length() {
  look(std::numeric_limits<std::size_t>::max());
  return passed_.size();
}

bool LoopState::advance() {
  if (!look(n_begun_ + 1)) return false;
  ++n_begun_;
  return true;
}

void LoopState::finish() {
  condition_ = nullptr;
  n_asked_ = candidates_.size();
}

std::optional<Value> LoopState::attribute(RenderState& state, std::string_view name) {
  const auto number = [](std::size_t n) { return Value::integer(static_cast<std::int64_t>(n)); };
  if (name == "index") return number(n_begun_);
  if (name == "index0") return number(n_begun_ - 1);
  if (name == "first") return Value::boolean(n_begun_ == 1);
  if (name == "last") return Value::boolean(!look(n_begun_ + 1));
  if (name == "length") return number(length());
  if (name == "revindex") return number(length() - n_begun_ + 1);
  if (name == "revindex0") return number(length() - n_begun_);
  if (name == "previtem") {
    return n_begun_ > 1 ? passed_[n_begun_ - 2] : Value::undefined("loop.previtem");
  }
  if (name == "nextitem") {
    return look(n_begun_ + 1) ? passed_[n_begun_] : Value::undefined("loop.nextitem");
  }
  static constexpr std::array<std::string_view, 4> kAbsent = {"cycle", "changed", "depth",
                                                              "depth0"};
  if (std::find(kAbsent.begin(), kAbsent.end(), name) != kAbsent.end()) {
    state.unsupported(fmt::format("'loop.{}'", name));
  }
  return std::nullopt;
}

}  // namespace ingot::inference::jinja
