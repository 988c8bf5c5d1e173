#include "formats/modules/pattern_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ingot::formats {
namespace {

/// Everything but letters, digits and `_` is escaped.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
    if (c == '#') {
      text += "\\d+";
    } else if (is_word) {
      text += c;
    } else {
      text += '\\';
      text += c;
    }
  }
  return text;
}

std::string regex_text(const LayeredSelector& pattern, const PatternPlaces& places) {
  const Selector& selector = *pattern.selector;
  const ModuleCensus& census = places.census;
  const std::string path = escaped(selector.path);
  const char* end = selector.reach == Reach::kParent ? ".*" : "$";
  if (pattern.is_everywhere) {
    if (selector.reach == Reach::kLayer) return "re:.*layers\\.\\d+\\..*";
    return fmt::format("re:.*\\.{}{}", path, end);
  }
  const std::size_t first = pattern.layers.front();
  const bool is_one_module = selector.reach == Reach::kLeaf && pattern.layers.size() == 1 &&
                             selector.path.find('#') == std::string::npos;
  if (is_one_module && !places.is_mtp(first))
    return fmt::format("{}{}.{}", census.prefix(), census.layers()[first], selector.path);
  std::vector<std::uint32_t> numbers;
  for (const std::size_t layer : pattern.layers) numbers.push_back(census.layers()[layer]);
  const std::string layers = numbers.size() == 1 ? fmt::format("{}", numbers.front())
                                                 : fmt::format("({})", fmt::join(numbers, "|"));
  if (selector.reach == Reach::kLayer) return fmt::format("re:.*layers\\.{}\\..*", layers);
  return fmt::format("re:.*layers\\.{}\\.(.*\\.)?{}{}", layers, path, end);
}

/// Layer 6 beside layer 61.
bool is_start_of_another(std::uint32_t number, const ModuleCensus& census) {
  const std::string digits = std::to_string(number);
  return std::any_of(census.layers().begin(), census.layers().end(), [&](std::uint32_t other) {
    return other != number && std::to_string(other).starts_with(digits);
  });
}

std::string glob_text(const LayeredSelector& pattern, const PatternPlaces& places) {
  const Selector& selector = *pattern.selector;
  const ModuleCensus& census = places.census;
  std::string path = selector.path;
  std::replace(path.begin(), path.end(), '#', '*');
  const char* end = selector.reach == Reach::kParent ? "*" : "";
  if (pattern.is_everywhere) {
    if (selector.reach == Reach::kLayer) return census.prefix() + "*";
    return fmt::format("*.{}{}", path, end);
  }
  const std::size_t layer = pattern.layers.front();
  const std::uint32_t number = census.layers()[layer];
  const std::string stem = fmt::format("{}{}", census.prefix(), number);
  if (selector.reach == Reach::kLayer)
    return stem + (is_start_of_another(number, census) ? ".*" : "*");
  return fmt::format("{}{}.{}{}", stem, places.is_mtp(layer) ? "*" : "", path, end);
}

}  // namespace

std::string pattern_text(const LayeredSelector& pattern, const PatternPlaces& places,
                         PatternSyntax syntax) {
  return syntax == PatternSyntax::kRegex ? regex_text(pattern, places) : glob_text(pattern, places);
}

}  // namespace ingot::formats
