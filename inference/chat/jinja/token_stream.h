#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inference/chat/jinja/token.h"

namespace ingot::inference::jinja {

/// Expressions and statements may stand inside each other this many times.
inline constexpr std::uint32_t kMaxSyntaxDepth = 100;

/// Tokens one by one, and the errors of whoever reads them.
class TokenStream {
 public:
  /// The last token is kEnd; it is never passed.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  [[nodiscard]] std::uint32_t line() const { return current().line; }
  const Token& next();

  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view name);
  /// These throw kCorrupt when something else stands there.
  std::string expect_any_name(std::string_view what);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view name);
  void expect(TokenKind kind);

  /// kCorrupt with the line: "expected WHAT, found ...".
  [[noreturn]] void fail_expected(std::string_view what) const;
  [[noreturn]] void fail(const std::string& message) const;
  /// kUnsupported with the line.
  [[noreturn]] void unsupported(const std::string& message) const;

  /// One level deeper for as long as this lives; kLimit beyond kMaxSyntaxDepth.
  class Depth {
   public:
    explicit Depth(TokenStream& tokens);
    ~Depth() { --tokens_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    TokenStream& tokens_;
  };

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::uint32_t depth_ = 0;
};

}  // namespace ingot::inference::jinja
