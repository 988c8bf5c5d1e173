#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "formats/json/json.h"

namespace ingot::formats {

/// Sends the events of one JSON value to a receiver with the functions of nlohmann's SAX, which
/// take texts as views that are valid during the call. Headers and indexes are millions of plain
/// names and whole numbers, which it reads itself; the library reads the other strings and numbers.
template <typename Sax>
class JsonScanner {
 public:
  /// `text` and `sax` must outlive this. The receiver bounds the depth: its start_object() and
  /// start_array() throw.
  JsonScanner(std::string_view text, Sax& sax)
      : at_(text.data()), end_(text.data() + text.size()), sax_(sax) {}

  /// Returns false where the text is not JSON; the library knows why. The receiver has had the
  /// events before that place. Exceptions of the receiver pass through.
  bool scan() {
    if (!value()) return false;
    skip_space();
    return at_ == end_;
  }

  /// During an event of a bracket: just behind it.
  [[nodiscard]] const char* position() const { return at_; }

 private:
  bool value() {
    skip_space();
    if (at_ == end_) return false;
    switch (*at_) {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return string() && sax_.string(text_);
      case 't':
        return word("true") && sax_.boolean(true);
      case 'f':
        return word("false") && sax_.boolean(false);
      case 'n':
        return word("null") && sax_.null();
      default:
        return number();
    }
  }

  bool object() {
    ++at_;
    sax_.start_object(kUnknownSize);
    if (takes('}')) return sax_.end_object();
    do {
      skip_space();
      if (!string() || !sax_.key(text_) || !takes(':') || !value()) return false;
    } while (takes(','));
    return takes('}') && sax_.end_object();
  }

  bool array() {
    ++at_;
    sax_.start_array(kUnknownSize);
    if (takes(']')) return sax_.end_array();
    do {
      if (!value()) return false;
    } while (takes(','));
    return takes(']') && sax_.end_array();
  }

  bool string() {
    if (at_ == end_ || *at_ != '"') return false;
    const char* const begin = at_ + 1;
    at_ = behind_plain(begin, end_);
    if (at_ != end_ && *at_ == '"') {
      text_ = std::string_view(begin, at_++);
      return true;
    }
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (*at_ == '\\' && ++at_ == end_) return false;
    }
    if (at_ == end_) return false;
    Json read = Json::parse(begin - 1, ++at_, nullptr, /*allow_exceptions=*/false);
    if (!read.is_string()) return false;
    string_ = std::move(read.get_ref<std::string&>());
    text_ = string_;
    return true;
  }

  /// Skips the ASCII characters of a string that need no decoding, eight at a time.
  static const char* behind_plain(const char* at, const char* end) {
    constexpr std::uint64_t kOnes = 0x0101010101010101;
    for (; end - at >= 8; at += 8) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, at, sizeof(bytes));
      // The top bit of a byte is set by its own one, or where the difference goes below zero.
      const std::uint64_t found = bytes | (bytes - kOnes * ' ') | ((bytes ^ kOnes * '"') - kOnes) |
                                  ((bytes ^ kOnes * '\\') - kOnes);
      if ((found & kOnes << 7) != 0) break;
    }
    return std::find_if_not(at, end, [](char c) {
      return static_cast<unsigned char>(c - ' ') < 0x60 && c != '"' && c != '\\';
    });
  }

  bool number() {
    // All numbers of so many digits fit 64 bits.
    constexpr std::ptrdiff_t kMaxDigits = 19;
    const char* const begin = at_;
    std::uint64_t whole = 0;
    for (; at_ != end_ && is_digit(*at_); ++at_)
      whole = whole * 10 + static_cast<std::uint64_t>(*at_ - '0');
    const bool is_plain = at_ - begin == 1 || (at_ - begin <= kMaxDigits && *begin != '0');
    if (at_ != begin && is_plain && (at_ == end_ || !is_of_number(*at_)))
      return sax_.number_unsigned(whole);
    at_ = std::find_if_not(at_, end_, is_of_number);
    const Json read = Json::parse(begin, at_, nullptr, /*allow_exceptions=*/false);
    if (read.is_number_unsigned()) return sax_.number_unsigned(read.get<std::uint64_t>());
    if (read.is_number_integer()) return sax_.number_integer(read.get<std::int64_t>());
    return read.is_number_float() && sax_.number_float(read.get<double>(), std::string(begin, at_));
  }

  bool word(std::string_view text) {
    if (!std::string_view(at_, end_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  /// True if the next sign is this one; then reading goes on behind it.
  bool takes(char sign) {
    skip_space();
    if (at_ == end_ || *at_ != sign) return false;
    ++at_;
    return true;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_of_number(char c) {
    return is_digit(c) || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E';
  }

  static constexpr std::size_t kUnknownSize = ~std::size_t{0};
  const char* at_;
  const char* const end_;
  Sax& sax_;
  std::string_view text_;  // the string last read
  std::string string_;     // its value, where that is not in the JSON
};

}  // namespace ingot::formats
