#include "inference/tokenizer/split_pattern_syntax.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/tokenizer/character_property.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/utf8.h"

// A recursive descent over Oniguruma's syntax that writes PCRE2's as it goes. Rejected: handing the
// pattern to PCRE2 as it is, which compiles nearly always and then matches something else for \s
// (U+180E), \w, \h, \v, `^`, \p{Han} and classes in classes, without a word.

namespace ingot::inference {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";

bool is_letter_or_digit(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

std::string literal(char32_t c) {
  if (is_letter_or_digit(c)) return {static_cast<char>(c)};
  return fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(c));
}

/// A set of characters: what may stand between PCRE2's brackets, and fragments that each match one
/// character and may not.
struct CharacterSet {
  std::string items;
  std::vector<std::string> fragments;

  [[nodiscard]] bool empty() const { return items.empty() && fragments.empty(); }
  [[nodiscard]] std::string fragment() const {
    if (fragments.empty()) return "[" + items + "]";
    std::string result = "(?:";
    if (!items.empty()) result += "[" + items + "]|";
    for (std::size_t i = 0; i < fragments.size(); ++i) result += (i > 0 ? "|" : "") + fragments[i];
    return result + ")";
  }
  [[nodiscard]] std::string complement() const {
    if (fragments.empty()) return "[^" + items + "]";
    return "(?:(?!" + fragment() + ")(?s:.))";
  }
};

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    // An option for the rest of the pattern. Elsewhere the two disagree on how far it reaches.
    if (accept("(?i)")) {
      out_ += "(?i)";
      ignores_case_ = true;
    }
    alternatives(0);
    if (!at_end()) corrupt("an unmatched ')'");
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool at_end() const { return position_ == pattern_.size(); }
  [[nodiscard]] bool sees(std::string_view text) const {
    return pattern_.substr(position_).starts_with(text);
  }
  bool accept(std::string_view text) {
    if (!sees(text)) return false;
    position_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_end()) corrupt("a '\\' at its end");
    const CodePoint c = code_point_at(pattern_, position_);
    position_ += c.n_bytes;
    return c.value;
  }

  [[noreturn]] void corrupt(std::string_view fact) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("pattern {} has {}", quote_text(pattern_), fact));
  }
  [[noreturn]] void unsupported(std::string_view construct) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("pattern {} has {}, which is not supported",
                                                     quote_text(pattern_), construct));
  }

  /// The element of out_ that a repeat applies to.
  struct Atom {
    std::size_t start = 0;
    bool may_repeat = false;
    bool is_repeated = false;
  };

  void alternatives(std::size_t depth) {
    if (depth > kMaxDepth) unsupported("groups deeper than 64 levels");
    Atom atom;
    while (!at_end() && !sees(")")) {
      if (repeat(atom)) continue;
      const std::size_t start = out_.size();
      atom = {.start = start, .may_repeat = one(depth), .is_repeated = false};
    }
  }

  bool write(std::string_view text, bool may_repeat) {
    out_ += text;
    return may_repeat;
  }
  static bool add(std::string& items, std::string_view more) {
    items += more;
    return true;
  }
  static bool add(std::vector<std::string>& fragments, std::string fragment) {
    fragments.push_back(std::move(fragment));
    return true;
  }

  // Writes one element; whether it may be repeated.
  bool one(std::size_t depth) {
    if (accept("|")) return write("|", false);
    if (accept("^")) return write("^", false);
    if (accept("$")) return write("$", false);
    if (accept(".")) return write(".", true);
    if (sees("(")) return group(depth);
    if (accept("[")) return write(bracket(depth), true);
    if (accept("\\")) return escape();
    out_ += literal(next());
    return true;
  }

  bool group(std::size_t depth) {
    // PCRE2 reads settings and verbs from these, none of which belongs to a file.
    if (sees("(*")) unsupported("'(*'");
    if (accept("(?#")) {
      const std::size_t end = pattern_.find(')', position_);
      if (end == std::string_view::npos) corrupt("an unclosed comment");
      position_ = end + 1;
      return false;
    }
    bool repeatable = true;
    const bool ignored_case = ignores_case_;
    if (const auto opening = known_opening()) {
      out_ += *opening;
      if (*opening == "(?i:" || *opening == "(?-i:") ignores_case_ = *opening == "(?i:";
      repeatable =
          *opening == "(?:" || *opening == "(?>" || *opening == "(?i:" || *opening == "(?-i:";
    } else if (sees("(?")) {
      unsupported(fmt::format("a '(?' of an unknown kind at byte {}", position_));
    } else {
      accept("(");
      out_ += "(?:";
    }
    alternatives(depth + 1);
    if (!accept(")")) corrupt("an unclosed group");
    ignores_case_ = ignored_case;
    out_ += ")";
    return repeatable;
  }

  std::optional<std::string_view> known_opening() {
    for (const std::string_view opening :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (accept(opening)) return opening;
    }
    return std::nullopt;
  }

  // A repeat of the atom before it; false when there is none here.
  bool repeat(Atom& atom) {
    const std::size_t start = position_;
    std::string written;
    bool is_interval = false;
    bool is_fixed = false;
    if (accept("*")) {
      written = "*";
    } else if (accept("+")) {
      written = "+";
    } else if (accept("?")) {
      written = "?";
    } else if (accept("{")) {
      const std::string low = digits();
      const bool has_comma = accept(",");
      const std::string high = has_comma ? digits() : low;
      if (!accept("}") || (low.empty() && high.empty())) {
        position_ = start;  // a brace that is no interval is itself
        return false;
      }
      written = "{" + (low.empty() ? "0" : low) + (has_comma ? "," + high : "") + "}";
      is_interval = true;
      is_fixed = !has_comma;
    } else {
      return false;
    }
    if (!atom.may_repeat) unsupported("a repeat of nothing");
    if (atom.is_repeated) {
      out_.insert(atom.start, "(?:");
      out_ += ")";
    }
    atom.is_repeated = true;
    // Oniguruma repeats the repeat in {n,m}+ and {n}?, where PCRE2 has possessive and lazy ones.
    if (!is_fixed && accept("?")) {
      written += "?";
    } else if (!is_interval && accept("+")) {
      written += "+";
    }
    out_ += written;
    return true;
  }

  std::string digits() {
    std::string result;
    while (!at_end() && pattern_[position_] >= '0' && pattern_[position_] <= '9')
      result += pattern_[position_++];
    return result;
  }

  // After a backslash outside brackets; whether it may be repeated.
  bool escape() {
    if (sees("b") || sees("B")) {
      const bool negate = next() == 'B';
      const std::string word = fmt::format("[{}]", kWord);
      out_ += negate ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                     : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
      return false;
    }
    for (const std::string_view anchor : {"A", "z", "Z"})
      if (accept(anchor)) return write(fmt::format("\\{}", anchor), false);
    if (accept("R")) return write("\\R", true);
    CharacterSet set;
    if (class_escape(set)) return write(set.fragment(), true);
    out_ += literal(character_escape());
    return true;
  }

  // An escape that stands for a class, after the backslash; false when it is none.
  bool class_escape(CharacterSet& set) {
    if (accept("d")) return add(set.items, "\\p{Nd}");
    if (accept("D")) return add(set.items, "\\P{Nd}");
    if (accept("s")) return add(set.items, "\\p{White_Space}");
    if (accept("S")) return add(set.items, "\\P{White_Space}");
    if (accept("w")) return add(set.items, kWord);
    if (accept("h")) return add(set.items, kHexDigits);
    if (accept("W")) return add(set.fragments, fmt::format("[^{}]", kWord));
    if (accept("H")) return add(set.fragments, fmt::format("[^{}]", kHexDigits));
    if (!sees("p{") && !sees("P{")) return false;
    bool negate = next() == 'P';
    accept("{");
    if (accept("^")) negate = !negate;
    const std::size_t end = pattern_.find('}', position_);
    if (end == std::string_view::npos) corrupt("an unclosed property");
    const std::string_view name = pattern_.substr(position_, end - position_);
    const auto property = pcre2_property(name);
    if (!property) unsupported("property " + quote_text(name));
    // Oniguruma folds \p{Lu} to both cases, PCRE2 does not. L, N, P and so on hold all cases.
    if (ignores_case_ && property->size() > 1)
      unsupported("property " + quote_text(name) + " where case is ignored");
    position_ = end + 1;
    set.items += fmt::format("\\{}{{{}}}", negate ? 'P' : 'p', *property);
    return true;
  }

  // An escape that stands for one character, after the backslash.
  char32_t character_escape() {
    const char32_t c = next();
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'x':
        return hexadecimal();
      default:
        break;
    }
    if (is_letter_or_digit(c)) unsupported(fmt::format("'\\{}'", static_cast<char>(c)));
    return c;
  }

  char32_t hexadecimal() {
    const bool braces = accept("{");
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    std::size_t end = position_;
    while (end < pattern_.size() && end - position_ < (braces ? 8U : 2U) &&
           kDigits.find(pattern_[end]) != std::string_view::npos)
      ++end;
    const std::string text(pattern_.substr(position_, end - position_));
    position_ = end;
    if (text.empty() || (braces && !accept("}"))) corrupt("an invalid '\\x'");
    const unsigned long value = std::stoul(text, nullptr, 16);
    // Without braces it is a byte of UTF-8, not a code point.
    if (!braces && value >= 0x80) unsupported("'\\x' of a single byte beyond 7F");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) corrupt("an invalid '\\x'");
    return static_cast<char32_t>(value);
  }

  // After '[': a fragment that matches one character of the class.
  std::string bracket(std::size_t depth) {
    const bool negate = accept("^");
    const CharacterSet set = bracket_set(depth + 1);
    return negate ? set.complement() : set.fragment();
  }

  CharacterSet bracket_set(std::size_t depth) {
    if (depth > kMaxDepth) unsupported("classes deeper than 64 levels");
    std::vector<CharacterSet> operands(1);
    if (accept("]")) operands.back().items += literal(']');  // no class is empty
    while (!accept("]")) {
      if (at_end()) corrupt("an unclosed class");
      if (accept("&&")) {
        if (operands.back().empty()) unsupported("'&&' after nothing");
        operands.emplace_back();
      } else {
        element(operands.back(), depth);
      }
    }
    if (operands.back().empty()) unsupported("'&&' before nothing");
    if (operands.size() == 1) return std::move(operands.front());
    std::string all = "(?:";
    for (std::size_t i = 1; i < operands.size(); ++i) all += "(?=" + operands[i].fragment() + ")";
    all += operands.front().fragment() + ")";
    return {.items = {}, .fragments = {std::move(all)}};
  }

  // One element of a class: a character, a range, an escape or a class.
  void element(CharacterSet& set, std::size_t depth) {
    if (sees("[:")) unsupported("a POSIX bracket '[:'");
    if (accept("[")) {
      const bool negate = accept("^");
      CharacterSet inner = bracket_set(depth + 1);
      if (negate) {
        set.fragments.push_back(inner.complement());
      } else {
        set.items += inner.items;
        for (std::string& fragment : inner.fragments) set.fragments.push_back(std::move(fragment));
      }
      return;
    }
    const bool is_escape = accept("\\");
    if (is_escape && class_escape(set)) return;
    const char32_t low = is_escape ? bracket_escape() : next();
    set.items += literal(low);
    if (!sees("-") || sees("-]") || sees("-[") || sees("-&&")) return;
    accept("-");
    const bool high_is_escape = accept("\\");
    if (CharacterSet unused; high_is_escape && class_escape(unused))
      unsupported("a range that ends with a class");
    const char32_t high = high_is_escape ? bracket_escape() : next();
    if (high < low) corrupt("a range whose end is before its start");
    set.items += '-';
    set.items += literal(high);
  }

  char32_t bracket_escape() { return accept("b") ? U'\b' : character_escape(); }

  std::string_view pattern_;
  std::size_t position_ = 0;
  bool ignores_case_ = false;
  std::string out_;
};

}  // namespace

std::string pcre2_syntax(std::string_view pattern) {
  return Rewriter(pattern).run();
}

std::string pcre2_literal(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    result += literal(c.value);
    i += c.n_bytes;
  }
  return result;
}

}  // namespace ingot::inference
