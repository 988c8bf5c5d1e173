#pragma once

#include <regex>

#include "tests/support/test.h"

namespace ingot::testing {

/// Whether a text holds a match of an expression. gmock's ContainsRegex calls regcomp of the C
/// library, in whose place libonig puts its own, which reads the flags otherwise.
MATCHER_P(ContainsPattern, expression, "holds what '" + std::string(expression) + "' matches") {
  return std::regex_search(std::string(arg), std::regex(expression));
}

}  // namespace ingot::testing
