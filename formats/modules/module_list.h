#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/modules/module_patterns.h"

namespace ingot::formats {

/// A list of modules in a quantization config, as engines read it.
class ModuleList {
 public:
  /// Throws kInvalidArgument for an expression that does not compile.
  ModuleList(std::span<const std::string> entries, PatternSyntax syntax);

  /// True if every engine finds the module: by name, glob or expression.
  [[nodiscard]] bool covers_for_all(std::string_view module) const;
  /// True if some engine does: vLLM also takes a ModelOpt entry that is inside of the name.
  [[nodiscard]] bool covers_for_any(std::string_view module) const;

 private:
  PatternSyntax syntax_;
  std::vector<std::string> names_;  // sorted
  std::vector<Pattern> patterns_;
};

/// `X.experts` of a routed expert `X.experts.0.up_proj`, or empty.
std::string_view experts_of(std::string_view module);

/// True if `sorted` has the name of a module, or of one above it.
bool names_or_holds(std::span<const std::string> sorted, std::string_view module);

}  // namespace ingot::formats
