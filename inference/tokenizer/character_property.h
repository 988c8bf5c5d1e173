#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ingot::inference {

/// PCRE2's spelling of what stands between the braces of Oniguruma's \p{...}: a general category,
/// short or long, a script or a binary property; case, blanks, `_` and `-` do not count. Scripts
/// become `sc:NAME`, since PCRE2 would take a bare name for Script_Extensions. Nothing for names
/// that PCRE2 does not know.
std::optional<std::string> pcre2_property(std::string_view name);

}  // namespace ingot::inference
