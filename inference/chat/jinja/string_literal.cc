#include "inference/chat/jinja/string_literal.h"

#include <charconv>
#include <cstddef>
#include <system_error>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/code_points.h"

namespace ingot::inference::jinja {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

class Unescaper {
 public:
  Unescaper(std::string_view text, std::uint32_t line) : text_(text), line_(line) {}

  std::string run() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c != '\\' || at_ == text_.size()) {
        result_ += c;
      } else {
        escape(text_[at_++]);
      }
    }
    return std::move(result_);
  }

 private:
  void escape(char c) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const auto i = kLetters.find(c); i != std::string_view::npos) {
      result_ += kMeanings[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      hexadecimal(c);
    } else if (c >= '0' && c <= '7') {
      octal(c);
    } else if (c == 'N') {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("line {}: \\N in a string (write the character itself)", line_));
    } else if (c != '\n') {
      result_ += '\\';
      result_ += c;
    }
  }

  void hexadecimal(char letter) {
    const std::size_t n_digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    const std::string_view digits = text_.substr(at_, n_digits);
    std::uint32_t code_point = 0;
    const auto parsed =
        std::from_chars(digits.data(), digits.data() + digits.size(), code_point, 16);
    if (digits.size() != n_digits || parsed.ec != std::errc() ||
        parsed.ptr != digits.data() + digits.size() || code_point > kLastCodePoint) {
      throw Error(
          ErrorCode::kCorrupt,
          fmt::format("line {}: \\{} in a string needs {} hexadecimal digits of a character", line_,
                      letter, n_digits));
    }
    if (code_point >= 0xD800U && code_point <= 0xDFFFU) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("line {}: a surrogate in a string (write the character itself)", line_));
    }
    append_code_point(result_, code_point);
    at_ += n_digits;
  }

  void octal(char first) {
    auto code_point = static_cast<char32_t>(first - '0');
    for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i) {
      code_point = code_point * 8 + static_cast<char32_t>(text_[at_++] - '0');
    }
    append_code_point(result_, code_point);
  }

  std::string_view text_;
  std::uint32_t line_;
  std::size_t at_ = 0;
  std::string result_;
};

}  // namespace

std::string unescape_string(std::string_view text, std::uint32_t line) {
  return Unescaper(text, line).run();
}

}  // namespace ingot::inference::jinja
