#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {

/// Strings, numbers and words of a JSON text, one after the other. Headers and indexes are millions
/// of plain names and whole numbers, which it reads itself; the library reads the other strings and
/// numbers.
class JsonTokens {
 public:
  /// `text` must outlive this. `where` names the file in errors, and `text_offset` is the place of
  /// the text in it.
  JsonTokens(std::string_view text, std::string_view where,
             JsonNumbers numbers = JsonNumbers::kOfJson, std::uint64_t text_offset = 0)
      : begin_(text.data()),
        at_(begin_),
        end_(begin_ + text.size()),
        where_(where),
        numbers_(numbers),
        text_offset_(text_offset) {}

 protected:
  /// Throws kCorrupt for the token at this place, at its first wrong character if it has one, else
  /// at its last.
  [[noreturn]] void refuse_token();

  /// Reads the string at this place, which begins with a quote. Valid until the next one is read.
  std::string_view string() {
    const char* const begin = at_++;
    at_ = behind_plain(at_, end_);
    if (at_ == end_ || *at_ != '"') return decoded_string(begin);
    return {begin + 1, at_++};
  }

  /// Reads the number or word at this place.
  Json scalar() {
    // All numbers of so many digits fit 64 bits.
    constexpr std::ptrdiff_t kMaxDigits = 19;
    const char* const begin = at_;
    std::uint64_t whole = 0;
    for (; at_ != end_ && is_digit(*at_); ++at_)
      whole = whole * 10 + static_cast<std::uint64_t>(*at_ - '0');
    const bool is_plain = at_ - begin == 1 || (at_ - begin <= kMaxDigits && *begin != '0');
    if (at_ != begin && is_plain && (at_ == end_ || !is_of_number(*at_))) return whole;
    at_ = begin;
    return other_scalar();
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

  const char* const begin_;
  const char* at_;
  const char* const end_;
  const std::string_view where_;

 private:
  /// Throws kCorrupt. The character at `last` shows that the text is no JSON; at the end of the
  /// text: it was cut.
  [[noreturn]] void refuse(const char* last) const;
  Json parsed(const char* begin, const char* end) const;
  std::string_view decoded_string(const char* begin);
  Json other_scalar();

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

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_of_number(char c) {
    return is_digit(c) || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E';
  }

  const JsonNumbers numbers_;
  const std::uint64_t text_offset_;
  std::string string_;  // value of the string last read, where that is not in the JSON
};

/// Sends one JSON value to a receiver that has the functions of JsonEvents, and takes keys and
/// texts as views that are valid during the call.
template <typename Receiver>
class JsonScanner : public JsonTokens {
 public:
  JsonScanner(const JsonTokens& text, Receiver& receiver) : JsonTokens(text), receiver_(receiver) {}

  /// Throws kCorrupt where the text is not JSON, after the events before that place. Exceptions of
  /// the receiver pass through.
  void scan() {
    value();
    skip_space();
    if (at_ != end_) refuse_token();
  }

  /// During an event of a bracket: just behind it.
  [[nodiscard]] const char* position() const { return at_; }

 private:
  void value() {
    if (takes('{')) {
      descend();
      receiver_.begin_object();
      elements('}', [this] {
        key();
        value();
      });
    } else if (takes('[')) {
      descend();
      receiver_.begin_array();
      elements(']', [this] { value(); });
    } else if (at_ != end_ && *at_ == '"') {
      receiver_.text(string());
    } else {
      receiver_.value(scalar());
    }
  }

  void key() {
    skip_space();
    if (at_ == end_ || *at_ != '"') refuse_token();
    const std::string_view name = string();
    if (name.size() > kMaxJsonKeyBytes) {
      throw Error(ErrorCode::kLimit, "holds a name of {} bytes, at most {} are accepted",
                  name.size(), kMaxJsonKeyBytes)
          .in_file(where_);
    }
    receiver_.key(name);
    if (!takes(':')) refuse_token();
  }

  void descend() {
    if (depth_++ == kMaxJsonDepth) {
      throw Error(ErrorCode::kCorrupt, "JSON is nested deeper than {} levels", kMaxJsonDepth)
          .in_file(where_);
    }
  }

  template <typename Element>
  void elements(char bracket, const Element& element) {
    if (!takes(bracket)) {
      do {
        element();
      } while (takes(','));
      if (!takes(bracket)) refuse_token();
    }
    --depth_;
    receiver_.end();
  }

  Receiver& receiver_;
  std::size_t depth_ = 0;
};

}  // namespace ingot::formats
