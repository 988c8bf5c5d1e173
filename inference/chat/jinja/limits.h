#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference::jinja {

/// The longest published chat templates have a tenth of this.
inline constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20U;

/// Brackets, signs and statements may stand inside each other this many times: the parser recurses.
inline constexpr std::size_t kMaxSyntaxDepth = 100;

/// What a render may use up, since a template is somebody else's program. Beyond it is kLimit.
struct RenderLimits {
  /// One per statement, operation and element visited, and per 64 bytes of text looked at.
  std::uint64_t max_steps = 20'000'000;
  /// Counts everything that a render makes, whether it keeps it or not.
  std::uint64_t max_made_bytes = std::uint64_t{1} << 30U;
  std::size_t max_output_bytes = std::size_t{64} << 20U;
  /// Counts expressions, statements and macro calls inside each other, and values in values.
  std::size_t max_depth = 400;
};

/// Throws `code` with the line of the template in front of the message.
template <typename... Arguments>
[[noreturn]] void fail_at(ErrorCode code, std::uint32_t line,
                          fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::string message = fmt::format(format, std::forward<Arguments>(arguments)...);
  throw Error(code, fmt::format("line {}: {}", line, message));
}

/// One level deeper for as long as this lives. Throws kLimit with the line beyond `max`.
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

}  // namespace ingot::inference::jinja
