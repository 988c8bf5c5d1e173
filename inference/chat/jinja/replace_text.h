#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "inference/chat/jinja/render_state.h"

namespace ingot::inference::jinja {

struct Replacement {
  std::string_view old, fresh;
  std::int64_t max_times = -1;  ///< all when negative
};

/// str.replace(): left to right; an empty `old` stands before every character and at the end.
std::string replace_text(RenderState& state, std::string_view text, const Replacement& replacement);

}  // namespace ingot::inference::jinja
