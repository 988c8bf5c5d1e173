#include "inference/tokenizer/pattern_field.h"

namespace ingot::inference {

SplitPattern pattern_field(const Component& component) {
  const Component pattern = component.child("pattern");
  if (const auto regex = pattern.optional_text("Regex")) return SplitPattern::regex(*regex);
  if (const auto literal = pattern.optional_text("String")) return SplitPattern::literal(*literal);
  pattern.unsupported("is neither a Regex nor a String");
}

}  // namespace ingot::inference
