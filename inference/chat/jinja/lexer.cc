#include "inference/chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/string_literal.h"

namespace ingot::inference::jinja {
namespace {

// Longer ones first.
constexpr std::array<std::string_view, 26> kOperators = {
    "==", "!=", ">=", "<=", "//", "**", "+", "-", "*", "/", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool in_name(char c) {
  return begins_name(c) || is_digit(c);
}

std::string with_unix_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text_and_tag();
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("line {}: {}", line_, message));
  }

  [[noreturn]] void fail_limit(const std::string& message) const {
    throw Error(ErrorCode::kLimit, fmt::format("line {}: {}", line_, message));
  }

  [[nodiscard]] bool looking_at(std::string_view text) const {
    return source_.substr(at_).starts_with(text);
  }

  // The only place that moves, so that lines are counted once.
  void take(std::size_t n) {
    const std::string_view taken = source_.substr(at_, n);
    line_ += static_cast<std::uint32_t>(std::count(taken.begin(), taken.end(), '\n'));
    if (!taken.empty()) line_starting_ = taken.back() == '\n';
    at_ += n;
  }

  void take_space() {
    std::size_t end = at_;
    for (std::size_t i = at_; i < source_.size(); end = i) {
      if (!is_space(next_code_point(source_, i))) break;
    }
    take(end - at_);
  }

  Token& add(TokenKind kind) {
    Token& token = tokens_.emplace_back();
    token.kind = kind;
    token.line = line_;
    return token;
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::kData).text = text;
  }

  // The sign behind "{%", "{{" or "{#" at byte `tag`, or 0.
  [[nodiscard]] char sign_behind(std::size_t tag) const {
    const std::size_t at = tag + 2;
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // Text before a tag at byte `tag`, as the tag's sign and lstrip_blocks leave it.
  [[nodiscard]] std::string_view text_before(std::size_t tag) const {
    const std::string_view text = source_.substr(at_, tag - at_);
    const char sign = sign_behind(tag);
    if (sign == '-') return strip(text, Ends::kRight);
    if (sign == '+' || source_[tag + 1] == '{') return text;
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(line), Ends::kLeft).empty() ? text.substr(0, line) : text;
  }

  void read_text_and_tag() {
    const std::size_t tag = find_tag();
    if (tag == std::string_view::npos) {
      add_data(source_.substr(at_));
      take(source_.size() - at_);
      return;
    }
    add_data(text_before(tag));
    const char kind = source_[tag + 1];
    const std::size_t n_sign = sign_behind(tag) == '\0' ? 0 : 1;
    take(tag - at_);
    if (kind == '#') {
      take(2 + n_sign);
      skip_comment();
    } else if (const auto raw = kind == '%' ? bare_block(tag, "raw") : std::nullopt) {
      take(raw->n_bytes);
      if (raw->trims_right) take_space();
      read_raw();
    } else {
      add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
      take(2 + n_sign);
      read_tag(kind == '%');
    }
  }

  [[nodiscard]] std::size_t find_tag() const {
    std::size_t i = source_.find('{', at_);
    while (i != std::string_view::npos && i + 1 < source_.size()) {
      const char next = source_[i + 1];
      if (next == '%' || next == '{' || next == '#') return i;
      i = source_.find('{', i + 1);
    }
    return std::string_view::npos;
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) fail("a comment without its end '#}'");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    take(end + 2 - at_);
    if (sign == '-') {
      take_space();
    } else if (sign != '+' && looking_at("\n")) {
      take(1);
    }
  }

  struct BareBlock {
    std::size_t n_bytes;
    bool trims_right;  // ends with "-%}"
    bool keeps_newline;
  };

  // A block tag at byte `tag` that holds just this word.
  [[nodiscard]] std::optional<BareBlock> bare_block(std::size_t tag, std::string_view word) const {
    std::size_t i = tag + 2 + (sign_behind(tag) == '\0' ? 0 : 1);
    i = behind_space(i);
    if (!source_.substr(i).starts_with(word)) return std::nullopt;
    i = behind_space(i + word.size());
    const char sign = i < source_.size() ? source_[i] : '\0';
    if (sign == '-' || sign == '+') ++i;
    if (!source_.substr(i).starts_with("%}")) return std::nullopt;
    return BareBlock{
        .n_bytes = i + 2 - tag, .trims_right = sign == '-', .keeps_newline = sign == '+'};
  }

  [[nodiscard]] std::size_t behind_space(std::size_t i) const {
    for (std::size_t next = i; i < source_.size(); i = next) {
      if (!is_space(next_code_point(source_, next))) break;
    }
    return i;
  }

  void read_raw() {
    for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      const auto end = bare_block(tag, "endraw");
      if (!end) continue;
      add_data(text_before(tag));
      take(tag - at_ + end->n_bytes);
      if (end->trims_right) {
        take_space();
      } else if (!end->keeps_newline && looking_at("\n")) {
        take(1);
      }
      return;
    }
    fail("a raw block without its end '{% endraw %}'");
  }

  // The end of the tag at the current byte, with the white space that it takes along.
  bool read_tag_end(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    const bool has_sign = looking_at("-") || (is_block && looking_at("+"));
    if (!source_.substr(at_ + (has_sign ? 1 : 0)).starts_with(end)) return false;
    const char sign = has_sign ? source_[at_] : '\0';
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
    take(end.size() + (has_sign ? 1 : 0));
    if (sign == '-') {
      take_space();
    } else if (is_block && sign != '+' && looking_at("\n")) {
      take(1);
    }
    return true;
  }

  void read_tag(bool is_block) {
    const std::uint32_t first_line = line_;
    std::string open;  // brackets that wait for their partner; "}}" inside of them ends no tag
    while (true) {
      take_space();
      if (at_ == source_.size()) {
        line_ = first_line;
        fail(fmt::format("a tag without its end '{}'", is_block ? "%}" : "}}"));
      }
      if (open.empty() && read_tag_end(is_block)) return;
      const char c = source_[at_];
      if (is_digit(c)) {
        read_number();
      } else if (begins_name(c)) {
        read_name();
      } else if (c == '\'' || c == '"') {
        read_string();
      } else {
        read_operator(open);
      }
    }
  }

  void read_name() {
    std::size_t end = at_;
    while (end < source_.size() && in_name(source_[end])) ++end;
    add(TokenKind::kName).text = source_.substr(at_, end - at_);
    take(end - at_);
  }

  void read_string() {
    const std::size_t begin = at_ + 1;
    std::size_t end = begin;
    while (end < source_.size() && source_[end] != source_[at_]) {
      end += source_[end] == '\\' ? std::size_t{2} : std::size_t{1};
    }
    if (end >= source_.size()) fail("a string without its end");
    Token& token = add(TokenKind::kString);
    token.text = unescape_string(source_.substr(begin, end - begin), line_);
    take(end + 1 - at_);
  }

  [[nodiscard]] std::size_t behind_digits(std::size_t i) const {
    while (i < source_.size() &&
           (is_digit(source_[i]) ||
            (source_[i] == '_' && i + 1 < source_.size() && is_digit(source_[i + 1])))) {
      ++i;
    }
    return i;
  }

  [[nodiscard]] bool digit_at(std::size_t i) const {
    return i < source_.size() && is_digit(source_[i]);
  }

  void read_number() {
    const std::size_t whole = behind_digits(at_);
    std::size_t end = whole;
    // In `content.0.type` the parts between dots are indices.
    const bool is_index = at_ > 0 && source_[at_ - 1] == '.';
    if (!is_index) {
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        end = behind_digits(end + 1);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const bool has_sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        const std::size_t exponent = end + (has_sign ? 2 : 1);
        if (digit_at(exponent)) end = behind_digits(exponent);
      }
    }
    if (end < source_.size() && begins_name(source_[end])) {
      fail(fmt::format("'{}' is no number", source_.substr(at_, std::min(end + 1 - at_, kShown))));
    }
    std::string digits(source_.substr(at_, end - at_));
    std::erase(digits, '_');
    if (end == whole) {
      add_integer(digits);
    } else {
      Token& token = add(TokenKind::kFloat);
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), token.real);
      if (parsed.ec != std::errc()) fail_limit(fmt::format("{} does not fit a float", cut(digits)));
    }
    take(end - at_);
  }

  void add_integer(const std::string& digits) {
    if (digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      fail(fmt::format("{} is no number (Python forbids leading zeros)", cut(digits)));
    }
    Token& token = add(TokenKind::kInteger);
    const auto parsed =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
    if (parsed.ec != std::errc()) {
      fail_limit(fmt::format("{} does not fit 64 bits", cut(digits)));
    }
  }

  void read_operator(std::string& open) {
    const auto* const found = std::find_if(kOperators.begin(), kOperators.end(),
                                           [&](std::string_view text) { return looking_at(text); });
    if (found == kOperators.end()) {
      std::size_t end = at_;
      next_code_point(source_, end);
      fail(fmt::format("unexpected '{}'", source_.substr(at_, end - at_)));
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(TokenKind::kOperator).text = *found;
    take(found->size());
  }

  static constexpr std::size_t kShown = 40;
  static std::string_view cut(std::string_view text) { return text.substr(0, kShown); }

  std::string_view source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = with_unix_lines(source);
  return Lexer(text).run();
}

}  // namespace ingot::inference::jinja
