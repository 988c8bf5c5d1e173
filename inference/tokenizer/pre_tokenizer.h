#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/json/json_fwd.h"
#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {

/// Rewrites a text before it is split. Types: ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Prepend,
/// Replace, Strip, StripAccents, and Sequence of these. Normal forms are those of the Unicode
/// version of utf8proc.
class Normalizer {
 public:
  /// `value` is the component of tokenizer.json, null for none.
  static Normalizer parse(const formats::Json* value);

  /// REQUIRES: valid UTF-8, not empty; the result is valid UTF-8 and may be empty.
  [[nodiscard]] std::string apply(std::string text, TextWork& work) const;

 private:
  using Step = std::function<std::string(std::string, TextWork&)>;
  std::vector<Step> steps_;
};

/// A text on its way to the model and the pieces that it is cut into so far: in order, apart, none
/// empty. Bytes between pieces are dropped.
struct SplitText {
  std::string text;
  std::vector<Span> pieces;
  /// True where the first piece starts at the start of the user's text.
  bool is_start = false;
};

/// Cuts a text into the pieces that the model merges within. Types: ByteLevel, Digits, Metaspace,
/// Punctuation, Split, Whitespace, WhitespaceSplit, and Sequence of these: one pass after the
/// other, each on every piece that the one before left.
class PreTokenizer {
 public:
  /// `value` is the component of tokenizer.json, null for none.
  static PreTokenizer parse(const formats::Json* value);

  /// `text` is valid UTF-8 and stays so. `is_start` says whether it starts the user's text.
  [[nodiscard]] SplitText apply(std::string text, bool is_start, TextWork& work) const;

 private:
  using Step = std::function<void(SplitText&, TextWork&)>;
  std::vector<Step> steps_;
};

}  // namespace ingot::inference
