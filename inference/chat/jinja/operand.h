#pragma once

#include <cstdint>
#include <string_view>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

// What operators ask of the types of their operands.

namespace ingot::inference::jinja {

/// In Python a boolean is an integer.
inline bool is_whole(const Value& value) {
  return value.is(Kind::kInteger) || value.is(Kind::kBoolean);
}
inline bool is_number(const Value& value) {
  return is_whole(value) || value.is(Kind::kFloat);
}

inline std::int64_t whole(const Value& value) {
  return value.is(Kind::kBoolean) ? static_cast<std::int64_t>(value.boolean()) : value.integer();
}
inline double real(const Value& value) {
  return value.is(Kind::kFloat) ? value.real() : static_cast<double>(whole(value));
}

inline bool is_list(const Value& value, Sequence::Form form) {
  return value.is(Kind::kSequence) && value.sequence().form == form;
}
inline bool same_form(const Value& left, const Value& right) {
  return left.is(Kind::kSequence) && is_list(right, left.sequence().form);
}
/// The fault of `left sign right`, which says when one of them is undefined.
[[noreturn]] void refuse_operands(const RenderState& state, std::string_view sign,
                                  const Value& left, const Value& right);

}  // namespace ingot::inference::jinja
