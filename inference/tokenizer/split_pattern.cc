#include "inference/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "formats/base/error.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/split_pattern_syntax.h"
#include "inference/tokenizer/utf8.h"

namespace ingot::inference {
namespace {

// Real ones stay below 2 KiB; what PCRE2 compiles may take 64 KiB.
constexpr std::size_t kMaxPatternBytes = 32'768;

// Steps that a search from one start may take. The patterns of tokenizers take a few per character
// of a run, so this stops backtracking that is quadratic or worse.
constexpr std::uint64_t kMaxStepsPerByte = 64;
constexpr std::uint64_t kMaxStepsAtLeast = 100'000;
constexpr std::uint32_t kMaxHeapKib = 262'144;

template <class T, void (*free)(T*)>
struct Freed {
  void operator()(T* object) const { free(object); }
};
template <class T, void (*free)(T*)>
using Owned = std::unique_ptr<T, Freed<T, free>>;

using Code = Owned<pcre2_code, &pcre2_code_free>;
using CompileContext = Owned<pcre2_compile_context, &pcre2_compile_context_free>;
using MatchContext = Owned<pcre2_match_context, &pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, &pcre2_match_data_free>;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <class T>
T* or_out_of_memory(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return object;
}

}  // namespace

struct SplitPattern::Compiled {
  Code code;
  std::string source;  // for errors
};

struct PatternScratch::State {
  MatchData data{or_out_of_memory(pcre2_match_data_create(1, nullptr))};
  MatchContext context{or_out_of_memory(pcre2_match_context_create(nullptr))};
};

PatternScratch::PatternScratch() : state_(std::make_unique<State>()) {
  pcre2_set_heap_limit(state_->context.get(), kMaxHeapKib);
}
PatternScratch::~PatternScratch() = default;

SplitPattern::SplitPattern(const std::string& pcre2, std::string_view source) {
  const CompileContext context(or_out_of_memory(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE at = 0;
  // Oniguruma's ^ and $ match at every line.
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  Code code(pcre2_compile(units(pcre2), pcre2.size(), kOptions, &error, &at, context.get()));
  if (code == nullptr) {
    throw Error(ErrorCode::kUnsupported, fmt::format("pattern {} cannot be compiled: {}",
                                                     quote_text(source), pcre2_message(error)));
  }
  // Where there is no JIT, or no right to write code, searches are interpreted and find the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_shared<const Compiled>(
      Compiled{.code = std::move(code), .source = std::string(source)});
}

SplitPattern SplitPattern::regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error(ErrorCode::kLimit,
                fmt::format("pattern {} has {} bytes, at most {} are accepted", quote_text(pattern),
                            pattern.size(), kMaxPatternBytes));
  }
  return {pcre2_syntax(pattern), pattern};
}

SplitPattern SplitPattern::literal(std::string_view text) {
  if (text.size() > kMaxPatternBytes) {
    throw Error(ErrorCode::kLimit, fmt::format("text {} has {} bytes, at most {} are accepted",
                                               quote_text(text), text.size(), kMaxPatternBytes));
  }
  return {pcre2_literal(text), text};
}

void SplitPattern::find_all(std::string_view text, PatternScratch& scratch,
                            std::vector<Span>& matches) const {
  matches.clear();
  pcre2_match_data* data = scratch.state_->data.get();
  pcre2_match_context* context = scratch.state_->context.get();
  const std::uint64_t n_steps = std::max(kMaxStepsAtLeast, kMaxStepsPerByte * text.size());
  pcre2_set_match_limit(context,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(n_steps, 0xFFFFFFFFU)));
  const auto search = [&](std::size_t from, std::uint32_t options) {
    return pcre2_match(compiled_->code.get(), units(text), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data, context);
  };
  for (std::size_t from = 0; from <= text.size();) {
    int found = search(from, 0);
    // Compiled code has 32 KiB for what it must remember; the interpreter takes it from the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(from, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      throw Error(ErrorCode::kLimit,
                  fmt::format("pattern {} cannot be searched in a text of {} bytes: {}",
                              quote_text(compiled_->source), text.size(), pcre2_message(found)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    const Span match{.begin = ends[0], .end = ends[1]};
    // No empty match right after a match: search on behind the next character.
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      from = match.end + (match.end < text.size() ? code_point_at(text, match.end).n_bytes : 1);
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
}

}  // namespace ingot::inference
