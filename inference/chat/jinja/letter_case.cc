#include "inference/chat/jinja/letter_case.h"

// Code units of PCRE2 are bytes; the header insists on being told.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <cstdint>
#include <memory>

#include <pcre2.h>

#include "formats/base/error.h"

namespace ingot::inference::jinja {
namespace {

// The two last ranges and U+0345 have case without being letters.
constexpr std::string_view kCased =
    "(?![A-Za-z])[\\p{Lu}\\p{Ll}\\p{Lt}\\x{345}\\x{2160}-\\x{2188}\\x{24B6}-\\x{24E9}]";
constexpr std::string_view kUnprintable = "[\\p{C}\\p{Z}]";

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

class CharacterClass {
 public:
  explicit CharacterClass(std::string_view expression) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
    INGOT_CHECK(code_ != nullptr);
  }

  [[nodiscard]] bool occurs_in(std::string_view text) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    INGOT_CHECK(match != nullptr);
    const int n = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              0, 0, match.get(), nullptr);
    INGOT_CHECK(n > 0 || n == PCRE2_ERROR_NOMATCH);
    return n > 0;
  }

 private:
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
char upper(char c) {
  return is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c;
}
char lower(char c) {
  return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
}

void require_known_case(RenderState& state, std::string_view text) {
  state.scan(text.size());
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x80U; })) {
    return;
  }
  static const CharacterClass cased(kCased);
  if (cased.occurs_in(text)) {
    state.unsupported("the case of letters outside ASCII cannot be changed");
  }
}

}  // namespace

std::string to_upper(RenderState& state, std::string_view text) {
  require_known_case(state, text);
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), upper);
  return result;
}

std::string to_lower(RenderState& state, std::string_view text) {
  require_known_case(state, text);
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

std::string to_capitalized(RenderState& state, std::string_view text) {
  std::string result = to_lower(state, text);
  if (!result.empty()) result[0] = upper(result[0]);
  return result;
}

std::string to_title(RenderState& state, std::string_view text) {
  std::string result = to_lower(state, text);
  bool after_letter = false;
  for (char& c : result) {
    const bool is_letter = is_lower(c);
    if (!after_letter) c = upper(c);
    after_letter = is_letter;
  }
  return result;
}

bool is_printable(std::string_view character) {
  static const CharacterClass unprintable(kUnprintable);
  return !unprintable.occurs_in(character);
}

}  // namespace ingot::inference::jinja
