#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"
#include "inference/chat/jinja/limits.h"

namespace ingot::inference::jinja {

/// A Jinja template, as far as chat templates use the language: what transformers' environment
/// does, with trim_blocks, lstrip_blocks, loop controls and its own tojson. What is not there is
/// refused by name. Copies share the parsed text.
class Template {
 public:
  /// `where` names the file in errors. Throws kCorrupt for what is no template, kUnsupported for a
  /// construct that is not there, kLimit for one too large or too deep; each with the line.
  static Template parse(std::string_view text, std::string_view where);

  /// The text for these variables, an object; `now` is what strftime_now tells, as `YYYY-MM-DD` or
  /// `YYYY-MM-DDTHH:MM:SS`, or empty. Throws kInvalidArgument for raise_exception and for what
  /// Python would refuse, kUnsupported and kLimit as above; each with the line.
  [[nodiscard]] std::string render(const formats::Json& variables, std::string_view now = {},
                                   const RenderLimits& limits = {}) const;

 private:
  struct Parsed;
  explicit Template(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace ingot::inference::jinja
