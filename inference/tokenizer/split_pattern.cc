#include "inference/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <oniguruma.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/tokenizer/characters.h"

// Patterns of tokenizer.json are Oniguruma's, because Hugging Face's tokenizers search with it.
// Rejected: PCRE2, which compiles nearly all of them and then matches something else for \s
// (U+180E), \w, \h, \v, `^`, \p{Han} and classes in classes, without a word.

namespace ingot::inference {
namespace {

// Published patterns are shorter than 2 KiB.
constexpr std::size_t kMaxPatternBytes = 32'768;
constexpr unsigned kMaxDepth = 256;  // depth of groups and classes

// Backtracks that one search may take. The patterns of tokenizers take a few per character of a
// run, so this stops backtracking that is quadratic or worse.
constexpr std::size_t kMaxStepsPerByte = 64;
constexpr std::size_t kMaxStepsAtLeast = 100'000;
constexpr unsigned long kMaxCalls = 1'000'000;          // calls of groups by \g<name>
constexpr unsigned kMaxStackEntries = 8 * 1024 * 1024;  // one per character of a run; 40 bytes each

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Regex = std::unique_ptr<regex_t, Freed<&onig_free>>;
using MatchParam = std::unique_ptr<OnigMatchParam, Freed<&onig_free_match_param>>;

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
using Region = std::unique_ptr<OnigRegion, FreeRegion>;

const OnigUChar* units(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

template <class... Info>
std::string onig_message(int code, Info*... info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int size = onig_error_code_to_str(buffer.data(), code, info...);
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<std::size_t>(size)};
}

// Oniguruma's own syntax but for callouts, which no file should be able to ask for.
OnigSyntaxType& syntax() {
  static OnigSyntaxType own = [] {
    std::array<OnigEncoding, 1> encodings{ONIG_ENCODING_UTF8};
    onig_initialize(encodings.data(), static_cast<int>(encodings.size()));
    onig_set_parse_depth_limit(kMaxDepth);
    onig_set_subexp_call_limit_in_search(kMaxCalls);
    OnigSyntaxType result = *ONIG_SYNTAX_ONIGURUMA;
    result.op2 &= ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME);
    return result;
  }();
  return own;
}

// Errors for a text that is no pattern.
constexpr std::array kCorruptCodes = {
    ONIGERR_PREMATURE_END_OF_CHAR_CLASS, ONIGERR_END_PATTERN_AT_ESCAPE,
    ONIGERR_UNMATCHED_CLOSE_PARENTHESIS, ONIGERR_END_PATTERN_WITH_UNMATCHED_PARENTHESIS,
    ONIGERR_END_PATTERN_IN_GROUP,        ONIGERR_EMPTY_RANGE_IN_CHAR_CLASS};

Regex compile(std::string_view pattern) {
  regex_t* regex = nullptr;
  OnigErrorInfo info{};
  const int code = onig_new(&regex, units(pattern), units(pattern) + pattern.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, &syntax(), &info);
  if (code == ONIGERR_MEMORY) throw std::bad_alloc();
  if (code != ONIG_NORMAL) {
    const bool is_corrupt = std::ranges::find(kCorruptCodes, code) != kCorruptCodes.end();
    throw Error(is_corrupt ? ErrorCode::kCorrupt : ErrorCode::kUnsupported,
                fmt::format("pattern {} cannot be compiled: {}", quote_text(pattern),
                            onig_message(code, &info)));
  }
  return Regex(regex);
}

void check_pattern_size(std::string_view pattern) {
  if (pattern.size() <= kMaxPatternBytes) return;
  throw Error(ErrorCode::kLimit, "pattern {} has {} bytes, at most {} are accepted",
              quote_text(pattern), pattern.size(), kMaxPatternBytes);
}

/// The state of one thread's searches, for any pattern.
struct Scratch {
  MatchParam limits{onig_new_match_param()};
  Region region{onig_region_new()};

  Scratch() {
    if (limits == nullptr || region == nullptr) throw std::bad_alloc();
    onig_initialize_match_param(limits.get());
    onig_set_match_stack_limit_size_of_match_param(limits.get(), kMaxStackEntries);
  }
  void allow_steps(std::size_t n) {
    onig_set_retry_limit_in_match_of_match_param(limits.get(), n);
    onig_set_retry_limit_in_search_of_match_param(limits.get(), n);
  }
};

}  // namespace

struct SplitPattern::Compiled {
  std::string source;
  Regex regex;  // null for a literal
};

SplitPattern::SplitPattern(std::shared_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}

SplitPattern SplitPattern::regex(std::string_view pattern) {
  check_pattern_size(pattern);
  return SplitPattern(std::make_shared<const Compiled>(
      Compiled{.source = std::string(pattern), .regex = compile(pattern)}));
}

SplitPattern SplitPattern::literal(std::string_view text) {
  check_pattern_size(text);
  return SplitPattern(
      std::make_shared<const Compiled>(Compiled{.source = std::string(text), .regex = nullptr}));
}

SplitPattern SplitPattern::of(const Component& component) {
  const Component pattern = component.child("pattern");
  if (const auto text = pattern.optional_text("Regex")) return regex(*text);
  if (const auto text = pattern.optional_text("String")) return literal(*text);
  pattern.unsupported("is neither a Regex nor a String");
}

void SplitPattern::find_all(std::string_view text, TextWork& work,
                            std::vector<Span>& matches) const {
  matches.clear();
  thread_local Scratch scratch;
  scratch.allow_steps(std::max(kMaxStepsAtLeast, kMaxStepsPerByte * text.size()));
  const OnigUChar* const start = units(text);
  const OnigUChar* const end = start + text.size();
  const auto search = [&](std::size_t from) -> std::optional<Span> {
    if (compiled_->regex == nullptr) {
      const std::size_t at = text.find(compiled_->source, from);
      if (at == std::string_view::npos) return std::nullopt;
      return Span{.begin = at, .end = at + compiled_->source.size()};
    }
    const int found =
        onig_search_with_param(compiled_->regex.get(), start, end, start + from, end,
                               scratch.region.get(), ONIG_OPTION_NONE, scratch.limits.get());
    if (found == ONIG_MISMATCH) return std::nullopt;
    if (found == ONIGERR_MEMORY) throw std::bad_alloc();
    if (found < 0) {
      throw Error(ErrorCode::kLimit, "pattern {} cannot be searched in a text of {} bytes: {}",
                  quote_text(compiled_->source), text.size(), onig_message(found));
    }
    // A \K in a lookbehind may put the start before the last match.
    return Span{.begin = std::max(from, static_cast<std::size_t>(scratch.region->beg[0])),
                .end = static_cast<std::size_t>(scratch.region->end[0])};
  };
  for (std::size_t from = 0; from <= text.size();) {
    const auto match = search(from);
    work.look();
    if (!match) return;
    // No empty match right after a match: search on behind the next character.
    if (match->begin == match->end && !matches.empty() && matches.back().end == match->end) {
      from = match->end + (match->end < text.size() ? code_point_at(text, match->end).n_bytes : 1);
      continue;
    }
    matches.push_back(*match);
    // Only an empty match could follow at the end, right after this one.
    if (match->end == text.size()) return;
    from = match->end;
  }
}

std::function<std::string(std::string_view, TextWork&)> make_replacement(
    const Component& component) {
  return [pattern = SplitPattern::of(component), content = component.text("content")](
             std::string_view text, TextWork& work) {
    std::vector<Span> matches;
    pattern.find_all(text, work, matches);
    const auto added = checked_mul(matches.size(), content.size());
    const auto size = added ? checked_add(*added, text.size()) : std::nullopt;
    work.require_size(size.value_or(std::numeric_limits<std::size_t>::max()));
    std::string result;
    result.reserve(*size);
    std::size_t end = 0;
    for (const Span& match : matches) {
      result.append(text, end, match.begin - end).append(content);
      end = match.end;
    }
    return result.append(text, end);
  };
}

}  // namespace ingot::inference
