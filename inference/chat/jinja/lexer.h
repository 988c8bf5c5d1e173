#pragma once

#include <string_view>
#include <vector>

#include "inference/chat/jinja/token.h"

namespace ingot::inference::jinja {

/// A template as tokens, the last of kind kEnd. White space as transformers sets Jinja up:
/// trim_blocks (the newline after a block tag or comment goes), lstrip_blocks (blanks before one
/// that starts its line go), and the newline at the end of the template goes; `-` and `+` in tags
/// as in Jinja. Line ends become "\n". Throws kCorrupt with the line for what is no template, and
/// kUnsupported for Jinja outside the subset.
std::vector<Token> tokenize(std::string_view source);

}  // namespace ingot::inference::jinja
