#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::inference {

/// A range of bytes of a text.
struct Span {
  std::size_t begin = 0, end = 0;
};

/// What one thread needs to search with patterns, whichever they are; made once per text, not per
/// search.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class SplitPattern;
  struct State;
  std::unique_ptr<State> state_;
};

/// A compiled pattern of tokenizer.json. Searching is const and may run on many threads, each with
/// a scratch of its own.
class SplitPattern {
 public:
  /// In Oniguruma's syntax. What cannot be said in PCRE2's is kUnsupported naming the pattern.
  static SplitPattern regex(std::string_view pattern);
  /// Matches the text as it stands. Empty, it matches between any two characters.
  static SplitPattern literal(std::string_view text);

  /// Replaces `matches` by all that do not overlap, left to right; anchors and lookarounds see
  /// `text` only. REQUIRES: valid UTF-8. A search that takes many times more steps than `text` has
  /// bytes, or too much memory, is kLimit naming the pattern.
  void find_all(std::string_view text, PatternScratch& scratch, std::vector<Span>& matches) const;

 private:
  struct Compiled;
  SplitPattern(const std::string& pcre2, std::string_view source);

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace ingot::inference
