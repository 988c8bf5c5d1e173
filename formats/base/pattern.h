#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

/// A user's pattern over tensor names. `re:EXPR` is a PCRE2 regular expression that must match from
/// the start of the name (as compressed-tensors does). Anything else is a glob over the whole name,
/// where `*` matches any run of characters, dots included, and `?` one.
class Pattern {
 public:
  /// Throws kInvalidArgument when the expression does not compile, or is empty.
  explicit Pattern(std::string_view text);

  /// Bounded in time: a regular expression that backtracks beyond its limit throws kLimit.
  [[nodiscard]] bool matches(std::string_view name) const;
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct Regex;
  std::string text_;
  std::shared_ptr<const Regex> regex_;  // immutable, so copies share it
};

/// True if one of the patterns matches; null: there are none.
bool matches_any(const std::vector<Pattern>* patterns, std::string_view name);

}  // namespace ingot
