#include "inference/chat/jinja/replace_text.h"

#include <cstddef>

#include "inference/chat/jinja/code_points.h"

namespace ingot::inference::jinja {

std::string replace_text(RenderState& state, std::string_view text,
                         const Replacement& replacement) {
  state.charge(text.size());
  std::int64_t left = replacement.max_times;
  const auto once = [&] {
    state.charge(replacement.fresh.size());
    --left;
  };
  std::string out;
  if (replacement.old.empty()) {
    for (std::size_t i = 0; left != 0;) {
      once();
      out += replacement.fresh;
      if (i == text.size()) return out;
      const std::size_t begin = i;
      next_code_point(text, i);
      out += text.substr(begin, i - begin);
      if (left == 0) out += text.substr(i);
      if (left == 0) return out;
    }
    return std::string(text);
  }
  while (left != 0) {
    const std::size_t at = text.find(replacement.old);
    if (at == std::string_view::npos) break;
    once();
    out += text.substr(0, at);
    out += replacement.fresh;
    text.remove_prefix(at + replacement.old.size());
  }
  out += text;
  return out;
}

}  // namespace ingot::inference::jinja
