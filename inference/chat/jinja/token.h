#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::inference::jinja {

enum class TokenKind : std::uint8_t {
  kData,           ///< text outside of tags, white space already trimmed
  kBlockBegin,     ///< {%
  kBlockEnd,       ///< %}
  kVariableBegin,  ///< {{
  kVariableEnd,    ///< }}
  kName,
  kString,  ///< its value, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::uint32_t line = 1;
  std::string text;  ///< of kData, kName, kString and kOperator
  std::int64_t integer = 0;
  double real = 0;

  [[nodiscard]] bool is_name(std::string_view name) const {
    return kind == TokenKind::kName && text == name;
  }
  [[nodiscard]] bool is_operator(std::string_view name) const {
    return kind == TokenKind::kOperator && text == name;
  }
};

}  // namespace ingot::inference::jinja
