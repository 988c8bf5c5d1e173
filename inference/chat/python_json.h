#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "formats/json/json_fwd.h"

namespace ingot::inference {

/// A double as Python's repr() writes it: the fewest digits that read back as the same number, with
/// an exponent below 1e-4 and from 1e16 on; "inf", "-inf", "nan".
std::string python_float(double value);

/// How json.dumps writes; the defaults are those of chat templates and of the V3.2 encoder.
struct PythonJsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  /// Null: all on one line. Else every element on its own line, indented by this per level.
  std::optional<std::string> indent;
  /// Empty means the default: ", " or, with an indent, ",".
  std::string item_separator;
  std::string key_separator = ": ";
  /// kLimit beyond it: an indentation multiplies what is written.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();
};

/// What Python's json.dumps writes: keys in their order, "/" as it is, floats as python_float,
/// infinite ones as Infinity and NaN. Strings must be valid UTF-8.
std::string python_json(const formats::Json& value, const PythonJsonStyle& style = {});

}  // namespace ingot::inference
