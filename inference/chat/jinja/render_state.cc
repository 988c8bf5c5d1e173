#include "inference/chat/jinja/render_state.h"

namespace ingot::inference::jinja {

void RenderState::step(std::uint64_t n) {
  // Both are far below 2^63: n counts things in memory.
  n_steps_ += n;
  if (n_steps_ > limits_.max_steps) {
    beyond("the template takes more than {} steps", limits_.max_steps);
  }
}

void RenderState::write(std::string_view text) {
  scan(text.size());
  if (text.size() > limits_.max_output_bytes - out.size()) {
    beyond("the template writes more than {} bytes", limits_.max_output_bytes);
  }
  out += text;
}

void RenderState::charge(std::uint64_t n_bytes) {
  if (n_bytes > limits_.max_made_bytes || n_made_bytes_ > limits_.max_made_bytes - n_bytes) {
    beyond("the template makes more than {} bytes", limits_.max_made_bytes);
  }
  n_made_bytes_ += n_bytes;
  step(n_bytes / 64);
}

Value RenderState::text(std::string value) {
  charge(value.size());
  return Value::text(std::move(value));
}

Value RenderState::sequence(Sequence::Form form, std::vector<Value> items) {
  charge(items.size() * sizeof(Value));
  auto& made = make<Sequence>();
  made.form = form;
  made.items = std::move(items);
  return Value::sequence(made);
}

Value RenderState::callable(const Builtin& builtin, Value self) {
  auto& made = make<Callable>();
  made.builtin = &builtin;
  made.self = std::move(self);
  return Value::callable(made);
}

}  // namespace ingot::inference::jinja
