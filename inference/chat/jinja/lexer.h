#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/limits.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

enum class TokenKind : std::uint8_t {
  kData,      ///< text outside of tags, white space already trimmed
  kName,      ///< also a word such as `if`
  kOperator,  ///< also the ends of tags: {% %} {{ }}
  kString,    ///< with its escapes resolved
  kNumber,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::uint32_t line = 1;
  std::string text;  ///< empty for kNumber and kEnd
  Value number;      ///< set for kNumber: an integer or a float

  /// Whether this is that word or operator.
  [[nodiscard]] bool is(std::string_view word) const {
    return (kind == TokenKind::kName || kind == TokenKind::kOperator) && text == word;
  }
};

/// A template as tokens, the last of kind kEnd. White space as transformers sets Jinja up:
/// trim_blocks (the newline after a block tag or comment goes), lstrip_blocks (blanks before one
/// that starts its line go), and the newline at the end of the template goes; `-` and `+` in tags
/// as in Jinja. Line ends become "\n". Throws kCorrupt with the line for what is no template,
/// kUnsupported for Jinja outside the subset, and kLimit for a number beyond 64 bits.
std::vector<Token> tokenize(std::string_view source);

/// Tokens one by one, and the errors of whoever reads them.
class TokenCursor {
 public:
  /// REQUIRES: the last token is kEnd. It is never passed.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  [[nodiscard]] std::uint32_t line() const { return current().line; }
  [[nodiscard]] bool at(std::string_view word) const { return current().is(word); }
  /// The current token; the one behind it becomes current.
  const Token& next();
  bool skip(std::string_view word);

  /// Throw kCorrupt when something else is current.
  void expect(std::string_view word);
  std::string expect_name(std::string_view what);

  /// Throws kCorrupt with the line.
  template <typename... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    fail_at(ErrorCode::kCorrupt, line(), format, std::forward<Arguments>(arguments)...);
  }
  /// Throws kCorrupt with the line: "expected WHAT, found ...".
  [[noreturn]] void fail_expected(std::string_view what) const;
  /// Throws kUnsupported with the line.
  template <typename... Arguments>
  [[noreturn]] void unsupported(fmt::format_string<Arguments...> format,
                                Arguments&&... arguments) const {
    fail_at(ErrorCode::kUnsupported, line(), format, std::forward<Arguments>(arguments)...);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace ingot::inference::jinja
