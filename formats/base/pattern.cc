#include "formats/base/pattern.h"

// Code units of PCRE2 are bytes; the header insists on being told.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include <pcre2.h>

#include "formats/base/error.h"
#include "formats/base/words.h"

namespace ingot {
namespace {

constexpr std::string_view kRegexPrefix = "re:";

// Any sensible expression over a tensor name needs a few thousand steps; these stop after
// milliseconds.
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kDepthLimit = 100'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMaxExpressionBytes = 65'536;

/// True if every byte is a whole character.
bool is_ascii(std::string_view text) {
  unsigned char bits = 0;
  for (const char c : text) bits |= static_cast<unsigned char>(c);
  return bits < 0x80;
}

/// Index behind the character (UTF-8 code point) that starts at `i`.
std::size_t next_character(std::string_view text, std::size_t i) {
  do {
    ++i;
  } while (i < text.size() && continues_character(text[i]));
  return i;
}

/// Matches a glob of stars and text only, as nearly all are: compares both ends, then searches the
/// text between two stars, leftmost first. A recipe of a hundred rules asks this millions of times.
bool text_glob_matches(std::string_view glob, std::string_view name) {
  const std::size_t first_star = glob.find('*');
  if (first_star == std::string_view::npos) return glob == name;
  const std::size_t last_star = glob.rfind('*');
  const std::string_view prefix = glob.substr(0, first_star);
  const std::string_view suffix = glob.substr(last_star + 1);
  if (name.size() < prefix.size() + suffix.size()) return false;
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  for (std::size_t star = first_star; star < last_star;) {
    const std::size_t next_star = glob.find('*', star + 1);
    const std::string_view text = glob.substr(star + 1, next_star - star - 1);
    const std::size_t at = name.find(text);
    if (at == std::string_view::npos) return false;
    name.remove_prefix(at + text.size());
    star = next_star;
  }
  return true;
}

/// Whole-name glob. Only the last star is ever retried, and giving it more text can only help the
/// part behind it, so the time is at most |glob| x |name|.
bool glob_matches(std::string_view glob, std::string_view name) {
  if (glob.find('?') == std::string_view::npos) return text_glob_matches(glob, name);
  std::size_t g = 0;
  std::size_t n = 0;
  std::size_t behind_star = std::string_view::npos;
  std::size_t star_end = 0;  // the star has taken name[.., star_end)
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      behind_star = ++g;
      star_end = n;
    } else if (g < glob.size() && glob[g] == '?') {
      ++g;
      n = next_character(name, n);
    } else if (g < glob.size() && glob[g] == name[n]) {
      ++g;
      ++n;
    } else if (behind_star != std::string_view::npos) {
      star_end = next_character(name, star_end);
      g = behind_star;
      n = star_end;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

/// Names are UTF-8, and so is the manifest that patterns go into. PCRE2 checks it when it compiles
/// a literal.
void check_utf8(std::string_view text) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* literal =
      pcre2_compile(code_units(text), text.size(), PCRE2_LITERAL | PCRE2_UTF, &error, &at, nullptr);
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (literal == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "pattern cannot be used: it is not UTF-8 (at byte {})",
                at);
  }
  pcre2_code_free(literal);
}

}  // namespace

struct Pattern::Regex {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  explicit Regex(std::string_view expression) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code =
        pcre2_compile(code_units(expression), expression.size(),
                      PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    if (code == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "pattern 're:{}' is not a regular expression from byte {} on (is a bracket or a "
                  "parenthesis left open, or is there nothing to repeat?)",
                  expression, at);
    }
    limits = pcre2_match_context_create(nullptr);
    if (limits == nullptr) {
      pcre2_code_free(code);
      throw std::bad_alloc();
    }
    pcre2_set_match_limit(limits, kMatchLimit);
    pcre2_set_depth_limit(limits, kDepthLimit);
    pcre2_set_heap_limit(limits, kHeapLimitKib);
    // Compiled expressions are ten times faster, where the system allows them; others are
    // interpreted.
    static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE));
  }
  ~Regex() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  [[nodiscard]] int match(std::string_view name) const {
    // Each thread has its own match data, so that threads may share a pattern.
    thread_local std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
        nullptr, pcre2_match_data_free);
    if (data == nullptr) data.reset(pcre2_match_data_create(1, nullptr));
    if (data == nullptr) throw std::bad_alloc();
    // PCRE2 reads a name byte by byte to see that it is UTF-8, which takes as long as the match.
    const std::uint32_t options = is_ascii(name) ? PCRE2_NO_UTF_CHECK : 0;
    return pcre2_match(code, code_units(name), name.size(), 0, options, data.get(), limits);
  }
};

Pattern::Pattern(std::string_view text) : text_(text) {
  const bool is_regex = text.starts_with(kRegexPrefix);
  const std::string_view expression = is_regex ? text.substr(kRegexPrefix.size()) : text;
  if (expression.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "pattern '{}' is empty (write '*' for every tensor)",
                text);
  }
  if (expression.size() > kMaxExpressionBytes) {
    throw Error(ErrorCode::kInvalidArgument, "pattern is {} bytes long, at most {} are accepted",
                expression.size(), kMaxExpressionBytes);
  }
  check_utf8(text);
  if (is_regex) regex_ = std::make_unique<Regex>(expression);
}

bool Pattern::matches(std::string_view name) const {
  if (!regex_) return glob_matches(text_, name);
  const int result = regex_->match(name);
  if (result >= 0) return true;
  switch (result) {
    case PCRE2_ERROR_NOMATCH:
      return false;
    case PCRE2_ERROR_NOMEMORY:
      throw std::bad_alloc();
    case PCRE2_ERROR_MATCHLIMIT:
    case PCRE2_ERROR_DEPTHLIMIT:
    case PCRE2_ERROR_HEAPLIMIT:
    case PCRE2_ERROR_JIT_STACKLIMIT:
      throw Error(ErrorCode::kLimit, "pattern '{}' backtracks too much on name '{}' (simplify it)",
                  text_, name);
    default:
      throw Error(ErrorCode::kCorrupt,
                  "pattern '{}' cannot be matched against this name (is it UTF-8?)", text_)
          .in_tensor(name);
  }
}

bool matches_any(const std::vector<Pattern>* patterns, std::string_view name) {
  return patterns != nullptr && std::ranges::any_of(*patterns, [&](const Pattern& pattern) {
           return pattern.matches(name);
         });
}

}  // namespace ingot
