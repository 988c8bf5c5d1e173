#include "formats/base/words.h"

#include <charconv>

namespace ingot {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = lower_case(c);
  return lower;
}

std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return upper;
}

std::vector<std::string_view> name_words(std::string_view name) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t dot = name.find('.');
    words.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return words;
    name.remove_prefix(dot + 1);
  }
}

std::optional<std::uint32_t> take_number(std::string_view& text, std::string_view after) {
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto n_digits = static_cast<std::size_t>(end - text.data());
  if (failure != std::errc() || !text.substr(n_digits).starts_with(after)) return std::nullopt;
  text.remove_prefix(n_digits + after.size());
  return number;
}

}  // namespace ingot
