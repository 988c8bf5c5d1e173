#include "inference/chat/jinja/render_state.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference::jinja {

void RenderState::fault(const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("line {}: {}", line_, message));
}

void RenderState::unsupported(const std::string& message) const {
  throw Error(ErrorCode::kUnsupported, fmt::format("line {}: {}", line_, message));
}

void RenderState::beyond(const std::string& message) const {
  throw Error(ErrorCode::kLimit, fmt::format("line {}: {}", line_, message));
}

void RenderState::step(std::uint64_t n) {
  // Both are far below 2^63: n counts things in memory.
  n_steps_ += n;
  if (n_steps_ > limits_.max_steps) {
    beyond(fmt::format("the template takes more than {} steps", limits_.max_steps));
  }
}

void RenderState::charge(std::uint64_t n_bytes) {
  if (n_bytes > limits_.max_made_bytes || n_made_bytes_ > limits_.max_made_bytes - n_bytes) {
    beyond(fmt::format("the template makes more than {} bytes", limits_.max_made_bytes));
  }
  n_made_bytes_ += n_bytes;
  step(n_bytes / 64);
}

Value RenderState::text(std::string&& value) {
  charge(value.size());
  return Value::text(std::make_shared<const std::string>(std::move(value)));
}

Sequence& RenderState::sequence(Sequence::Form form, std::vector<Value>&& items) {
  charge(items.size() * sizeof(Value));
  Sequence& made = make<Sequence>();
  made.form = form;
  made.items = std::move(items);
  return made;
}

RenderState::Depth::Depth(RenderState& state) : state_(state) {
  if (state_.depth_ == state_.limits_.max_depth) {
    state_.beyond(fmt::format("more than {} levels inside each other", state_.limits_.max_depth));
  }
  ++state_.depth_;
}

}  // namespace ingot::inference::jinja
