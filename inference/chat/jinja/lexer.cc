#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/syntax.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference::jinja {
namespace {

constexpr std::size_t kNone = std::string_view::npos;
constexpr std::size_t kShownBytes = 40;

constexpr std::array<std::string_view, 6> kLongOperators = {"==", "!=", ">=", "<=", "//", "**"};
constexpr std::string_view kShortOperators = "+-*/%~[](){}><=.:|,;";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string with_unix_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool is_return = source[i] == '\r';
    text += is_return ? '\n' : source[i];
    if (is_return && source.substr(i + 1).starts_with('\n')) ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// The text between the quotes of a string, with Python's escapes resolved. A backslash before any
// other character stays.
std::string unescaped(std::string_view text, std::uint32_t line) {
  static constexpr std::string_view kLetters = "fnrtv\\'\"";
  static constexpr std::string_view kMeanings = "\f\n\r\t\v\\'\"";
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    const char c = text[++i];
    if (const auto at = kLetters.find(c); at != kNone) {
      result += kMeanings[at];
    } else if (c == 'x' || c == 'u') {
      const std::string_view digits = text.substr(i + 1, c == 'x' ? 2 : 4);
      const char* const end = digits.data() + digits.size();
      std::uint32_t code_point = 0;
      const auto parsed = std::from_chars(digits.data(), end, code_point, 16);
      const bool is_surrogate = code_point >= 0xD800U && code_point <= 0xDFFFU;
      if (digits.size() != (c == 'x' ? 2 : 4) || parsed.ptr != end || is_surrogate) {
        fail_at(is_surrogate ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, line,
                "\\{}{} is no character", c, digits);
      }
      append_utf8(result, code_point);
      i += digits.size();
    } else if (c == 'N' || c == 'U' || c == 'a' || c == 'b' || is_digit(c)) {
      fail_at(ErrorCode::kUnsupported, line, "\\{} in a string (write the character itself)", c);
    } else if (c != '\n') {
      result += {'\\', c};
    }
  }
  return result;
}

class Lexer : public Faults<Lexer> {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  [[nodiscard]] std::uint32_t line() const { return line_; }

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text_and_tag();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const { return source_.substr(at_); }

  // The byte at `i`, NUL behind the end.
  [[nodiscard]] char byte(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }

  // The only place that moves, so that lines are counted once.
  void take(std::size_t n) {
    const std::string_view taken = source_.substr(at_, n);
    line_ += static_cast<std::uint32_t>(std::count(taken.begin(), taken.end(), '\n'));
    if (!taken.empty()) is_line_start_ = taken.back() == '\n';
    at_ += n;
  }

  void take_space() { take(rest().size() - strip(rest(), Ends::kLeft).size()); }

  Token& add(TokenKind kind, std::string_view text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::string(text), .number = {}});
    return tokens_.back();
  }

  void add_and_take(TokenKind kind, std::string_view text) {
    add(kind, text);
    take(text.size());
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::kData, text);
  }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', at_); i != kNone; i = source_.find('{', i + 1)) {
      if (byte(i + 1) == '%' || byte(i + 1) == '{' || byte(i + 1) == '#') return i;
    }
    return kNone;
  }

  // The sign behind "{%", "{{" or "{#" at byte `tag`, or NUL.
  [[nodiscard]] char sign_behind(std::size_t tag) const {
    const char c = byte(tag + 2);
    return c == '-' || c == '+' ? c : '\0';
  }

  // The text before a tag at byte `tag`, as the tag's sign and lstrip_blocks leave it.
  [[nodiscard]] std::string_view text_before(std::size_t tag) const {
    const std::string_view text = source_.substr(at_, tag - at_);
    const char sign = sign_behind(tag);
    if (sign == '-') return strip(text, Ends::kRight);
    if (sign == '+' || byte(tag + 1) == '{') return text;
    const std::size_t newline = text.rfind('\n');
    if (newline == kNone && !is_line_start_) return text;
    const std::size_t line = newline == kNone ? 0 : newline + 1;
    return strip(text.substr(line), Ends::kLeft).empty() ? text.substr(0, line) : text;
  }

  // The white space that goes with the end of a tag: all behind '-', else the newline of a block.
  void take_space_behind_tag(char sign, bool is_block) {
    if (sign == '-') {
      take_space();
    } else if (is_block && sign != '+' && byte(at_) == '\n') {
      take(1);
    }
  }

  void read_text_and_tag() {
    const std::size_t tag = find_tag();
    if (tag == kNone) {
      add_data(rest());
      take(rest().size());
      return;
    }
    add_data(text_before(tag));
    take(tag - at_);
    const std::size_t n_sign = sign_behind(tag) == '\0' ? 0 : 1;
    const char kind = byte(tag + 1);
    if (kind == '#') {
      take(2 + n_sign);
      skip_comment();
    } else {
      add_and_take(TokenKind::kOperator, rest().substr(0, 2));
      take(n_sign);
      read_tag(kind == '%');
    }
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == kNone) fail("a comment without its end '#}}'");
    const char sign = end > at_ ? byte(end - 1) : '\0';
    take(end + 2 - at_);
    take_space_behind_tag(sign, true);
  }

  void read_tag(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    const std::uint32_t first_line = line_;
    std::string open;  // brackets that wait for their partner; "}}" inside of them ends no tag
    while (true) {
      take_space();
      if (at_ == source_.size()) {
        fail_at(ErrorCode::kCorrupt, first_line, "a tag without its end '{}'", end);
      }
      const char c = byte(at_);
      const bool has_sign = c == '-' || (c == '+' && is_block);
      if (open.empty() && rest().substr(has_sign ? 1 : 0).starts_with(end)) {
        take(has_sign ? 1 : 0);
        add_and_take(TokenKind::kOperator, end);
        take_space_behind_tag(has_sign ? c : '\0', is_block);
        return;
      }
      if (is_digit(c)) {
        read_number();
      } else if (begins_name(c)) {
        std::size_t n = 1;
        while (begins_name(byte(at_ + n)) || is_digit(byte(at_ + n))) ++n;
        add_and_take(TokenKind::kName, rest().substr(0, n));
        if (tokens_.back().text == "raw" && tokens_[tokens_.size() - 2].text == "{%") {
          unsupported("the statement 'raw'");
        }
      } else if (c == '\'' || c == '"') {
        read_string();
      } else {
        read_operator(open);
      }
    }
  }

  void read_string() {
    const char quote = byte(at_);
    std::size_t n = 1;
    while (at_ + n < source_.size() && byte(at_ + n) != quote) n += byte(at_ + n) == '\\' ? 2U : 1U;
    if (at_ + n >= source_.size()) fail("a string without its end");
    add(TokenKind::kString, unescaped(rest().substr(1, n - 1), line_));
    take(n + 1);
  }

  [[nodiscard]] std::size_t behind_digits(std::size_t i) const {
    while (is_digit(byte(i))) ++i;
    return i;
  }

  void read_number() {
    std::size_t end = behind_digits(at_);
    const std::size_t whole = end;
    // In `content.0.type` the parts between dots are indices.
    if (byte(at_ - 1) != '.') {
      if (byte(end) == '.' && is_digit(byte(end + 1))) end = behind_digits(end + 1);
      if (byte(end) == 'e' || byte(end) == 'E') {
        const bool has_sign = byte(end + 1) == '+' || byte(end + 1) == '-';
        const std::size_t exponent = end + (has_sign ? 2 : 1);
        if (is_digit(byte(exponent))) end = behind_digits(exponent);
      }
    }
    const std::string_view digits = source_.substr(at_, end - at_);
    const bool is_whole = end == whole;
    // Python forbids leading zeros.
    if (begins_name(byte(end)) ||
        (is_whole && digits[0] == '0' && digits.find_first_not_of('0') != kNone)) {
      fail("'{}' is no number", rest().substr(0, std::min(digits.size() + 1, kShownBytes)));
    }
    std::int64_t integer = 0;
    double real = 0;
    const char* const last = digits.data() + digits.size();
    const auto parsed = is_whole ? std::from_chars(digits.data(), last, integer)
                                 : std::from_chars(digits.data(), last, real);
    if (parsed.ec != std::errc()) {
      beyond("{} does not fit 64 bits", digits.substr(0, kShownBytes));
    }
    add(TokenKind::kNumber, {}).number = is_whole ? Value::integer(integer) : Value::real(real);
    take(digits.size());
  }

  void read_operator(std::string& open) {
    const char c = byte(at_);
    if (std::find(kLongOperators.begin(), kLongOperators.end(), rest().substr(0, 2)) !=
        kLongOperators.end()) {
      add_and_take(TokenKind::kOperator, rest().substr(0, 2));
      return;
    }
    if (kShortOperators.find(c) == kNone) {
      fail("unexpected '{}'", rest().substr(0, code_point_at(source_, at_).n_bytes));
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (!open.ends_with(c)) fail("unexpected '{}'", c);
      open.pop_back();
    }
    add_and_take(TokenKind::kOperator, rest().substr(0, 1));
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = with_unix_lines(source);
  return Lexer(text).run();
}

const Token& TokenCursor::next() {
  const Token& token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenCursor::skip(std::string_view word) {
  if (!at(word)) return false;
  next();
  return true;
}

void TokenCursor::expect(std::string_view word) {
  if (!skip(word)) fail_expected(fmt::format("'{}'", word));
}

std::string TokenCursor::expect_name(std::string_view what) {
  if (current().kind != TokenKind::kName) fail_expected(what);
  return next().text;
}

void TokenCursor::fail_expected(std::string_view what) const {
  // Names in the order of TokenKind; words and operators show themselves.
  static constexpr std::array<std::string_view, 6> kKinds = {
      "text", "", "", "a string", "a number", "the end of the template"};
  const std::string_view kind = kKinds.at(static_cast<std::size_t>(current().kind));
  const std::string found = !kind.empty()
                                ? std::string(kind)
                                : fmt::format("'{}'", current().text.substr(0, kShownBytes));
  fail("expected {}, found {}", what, found);
}

}  // namespace ingot::inference::jinja
