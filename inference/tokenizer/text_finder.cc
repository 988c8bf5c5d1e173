#include "inference/tokenizer/text_finder.h"

#include <algorithm>

namespace ingot::inference {

TextFinder::TextFinder(const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    sorted_.emplace_back(texts[i], i);
    starts_[static_cast<unsigned char>(texts[i].front())] = true;
  }
  std::ranges::sort(sorted_);
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from) const {
  if (sorted_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    if (auto found = longest_at(text, begin)) return found;
  }
  return std::nullopt;
}

// Narrows the sorted list byte by byte to those that the text continues with. Those that end at
// some depth stand first there.
std::optional<TextFinder::Found> TextFinder::longest_at(std::string_view text,
                                                        std::size_t begin) const {
  std::optional<Found> longest;
  auto low = sorted_.begin();
  auto high = sorted_.end();
  for (std::size_t depth = 0; begin + depth < text.size(); ++depth) {
    const auto byte_at = [depth](const auto& entry) {
      return static_cast<unsigned char>(entry.first[depth]);
    };
    const auto byte = static_cast<unsigned char>(text[begin + depth]);
    low = std::ranges::lower_bound(low, high, byte, std::ranges::less(), byte_at);
    high = std::ranges::upper_bound(low, high, byte, std::ranges::less(), byte_at);
    if (low == high) break;
    if (low->first.size() != depth + 1) continue;
    longest = {.span = {begin, begin + depth + 1}, .index = low->second};
    while (low != high && low->first.size() == depth + 1) ++low;
  }
  return longest;
}

}  // namespace ingot::inference
