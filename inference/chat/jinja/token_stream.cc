#include "inference/chat/jinja/token_stream.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference::jinja {
namespace {

constexpr std::size_t kMaxShownBytes = 60;

std::string shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return fmt::format("'{}'", std::string_view(token.text).substr(0, kMaxShownBytes));
    case TokenKind::kEnd:
      break;
  }
  return "the end of the template";
}

}  // namespace

const Token& TokenStream::next() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool TokenStream::skip_operator(std::string_view name) {
  if (!current().is_operator(name)) return false;
  next();
  return true;
}

std::string TokenStream::expect_any_name(std::string_view what) {
  if (current().kind != TokenKind::kName) fail_expected(what);
  return next().text;
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
}

void TokenStream::expect_operator(std::string_view name) {
  if (!skip_operator(name)) fail_expected(fmt::format("'{}'", name));
}

void TokenStream::expect(TokenKind kind) {
  if (current().kind != kind) fail_expected(shown(Token{.kind = kind}));
  next();
}

void TokenStream::fail_expected(std::string_view what) const {
  fail(fmt::format("expected {}, found {}", what, shown(current())));
}

void TokenStream::fail(const std::string& message) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("line {}: {}", line(), message));
}

void TokenStream::unsupported(const std::string& message) const {
  throw Error(ErrorCode::kUnsupported, fmt::format("line {}: {}", line(), message));
}

TokenStream::Depth::Depth(TokenStream& tokens) : tokens_(tokens) {
  if (tokens_.depth_ == kMaxSyntaxDepth) {
    throw Error(ErrorCode::kLimit, fmt::format("line {}: more than {} levels inside each other",
                                               tokens_.line(), kMaxSyntaxDepth));
  }
  ++tokens_.depth_;
}

}  // namespace ingot::inference::jinja
