#pragma once

#include <string>
#include <string_view>

namespace ingot::inference {

/// Rewrites a regular expression of tokenizer.json, which is in Oniguruma's syntax, so that PCRE2
/// (UTF, UCP, MULTILINE, newline LF) matches the same. REQUIRES: valid UTF-8.
///
/// Known and rewritten where the two differ: \s \S (White_Space), \d \D, \w \W \b \B (Unicode
/// word), \h \H (hexadecimal digits), \v, \p{...} (scripts without Script_Extensions, long names of
/// general categories, \p{^...}), classes inside classes and `&&`, {n,m}+ and {n}? (a repeated
/// repeat), {,n}. Groups do not capture. Copied: literals, . ^ $ | \A \z \Z \R, (?:) (?=) (?!)
/// (?<=) (?<!) (?>) (?i:), greedy, lazy and possessive repeats.
///
/// Everything else, such as back references and POSIX brackets, is kUnsupported naming the pattern
/// and the construct; an unclosed group or class is kCorrupt.
std::string pcre2_syntax(std::string_view pattern);

/// Quotes a text so that PCRE2 matches it as it stands.
std::string pcre2_literal(std::string_view text);

}  // namespace ingot::inference
