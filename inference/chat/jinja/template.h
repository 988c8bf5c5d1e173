#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"

namespace ingot::inference::jinja {

/// Limits of a render, since a template is an untrusted program. Throws kLimit beyond them.
struct RenderLimits {
  /// Counts one for each statement, operation and element visited, and for each 64 bytes of text
  /// looked at.
  std::uint64_t max_steps = 20'000'000;
  /// Counts everything that a render makes, whether it keeps it or not.
  std::uint64_t max_made_bytes = std::uint64_t{1} << 30U;
  /// Four times a context of a million tokens.
  std::size_t max_output_bytes = std::size_t{16} << 20U;
  /// Counts expressions, statements and macro calls inside each other, and values in values.
  std::size_t max_depth = 400;
};

/// A Jinja template, as far as chat templates use the language: as in transformers' environment,
/// with trim_blocks, lstrip_blocks, loop controls and its own tojson. Other constructs are refused
/// by name. Copies share the parsed text.
class Template {
 public:
  /// `where` names the file in errors. Throws kCorrupt for a text that is no template, kUnsupported
  /// for a construct that is not there, kLimit for one too large or too deep; each with the line.
  static Template parse(std::string_view text, std::string_view where);

  /// Returns the text for these variables, an object; `now` is the answer of strftime_now, as
  /// `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`, or empty. Throws kInvalidArgument for raise_exception
  /// and for operations that Python would refuse, kUnsupported and kLimit as above; each with the
  /// line.
  [[nodiscard]] std::string render(const formats::Json& variables, std::string_view now = {},
                                   const RenderLimits& limits = {}) const;

 private:
  struct Parsed;
  explicit Template(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace ingot::inference::jinja
