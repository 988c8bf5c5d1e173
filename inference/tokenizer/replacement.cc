#include "inference/tokenizer/replacement.h"

#include <limits>
#include <vector>

#include "formats/base/checked.h"
#include "inference/tokenizer/pattern_field.h"
#include "inference/tokenizer/text_limit.h"

namespace ingot::inference {

Replacement::Replacement(const Component& component)
    : pattern_(pattern_field(component)), content_(component.text("content")) {}

std::string Replacement::apply(std::string_view text, PatternScratch& scratch) const {
  std::vector<Span> matches;
  pattern_.find_all(text, scratch, matches);
  const auto added = checked_mul(matches.size(), content_.size());
  const auto size = added ? checked_add(*added, text.size()) : std::nullopt;
  check_text_size(size.value_or(std::numeric_limits<std::size_t>::max()));
  std::string result;
  result.reserve(*size);
  std::size_t end = 0;
  for (const Span& match : matches) {
    result += text.substr(end, match.begin - end);
    result += content_;
    end = match.end;
  }
  result += text.substr(end);
  return result;
}

}  // namespace ingot::inference
