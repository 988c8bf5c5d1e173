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
  [[nodiscard]] std::string apply(std::string text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  std::vector<Step> steps_;
};

}  // namespace ingot::inference
