#pragma once

#include <string>
#include <string_view>

#include "inference/tokenizer/component.h"
#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {

/// A `Replace` component, which may be a normalizer and a decoder: every match of `pattern` becomes
/// `content`, which is a plain text.
class Replacement {
 public:
  explicit Replacement(const Component& component);

  [[nodiscard]] std::string apply(std::string_view text, PatternScratch& scratch) const;

 private:
  SplitPattern pattern_;
  std::string content_;
};

}  // namespace ingot::inference
