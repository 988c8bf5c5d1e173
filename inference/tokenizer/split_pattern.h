#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inference/tokenizer/component.h"
#include "inference/tokenizer/text_work.h"

namespace ingot::inference {

/// A range of bytes of a text.
struct Span {
  std::size_t begin = 0, end = 0;
};

/// A compiled pattern of tokenizer.json. Searching is const and may run on many threads.
class SplitPattern {
 public:
  /// In Oniguruma's own syntax, as in Hugging Face's tokenizers, without callouts. Throws kCorrupt
  /// for an unclosed group or class and the like, kUnsupported for constructs that Oniguruma does
  /// not know or allow, kLimit for long patterns; all name the pattern.
  static SplitPattern regex(std::string_view pattern);
  /// Matches the text literally. Empty, it matches between any two characters.
  static SplitPattern literal(std::string_view text);
  /// The `pattern` of a Split or Replace: {"Regex": text} or {"String": text}.
  static SplitPattern of(const Component& component);

  /// Replaces `matches` by all that do not overlap, left to right; anchors and lookarounds see
  /// `text` only. REQUIRES: valid UTF-8. A search that takes many times more steps than `text` has
  /// bytes, or too much memory, is kLimit naming the pattern; and so is work beyond `work`.
  void find_all(std::string_view text, TextWork& work, std::vector<Span>& matches) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled);

  std::shared_ptr<const Compiled> compiled_;
};

/// The function of a `Replace` component, which may be a normalizer and a decoder: every match of
/// `pattern` becomes `content`, which is a plain text.
std::function<std::string(std::string_view, TextWork&)> make_replacement(
    const Component& component);

}  // namespace ingot::inference
