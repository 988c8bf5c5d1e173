#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ingot {

/// ASCII only; all other bytes stay.
constexpr char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

/// True if a byte of UTF-8 does not begin a character.
constexpr bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// A name between its dots.
std::vector<std::string_view> name_words(std::string_view name);

/// The decimal number that is the whole text; nullopt for any other text.
template <typename Number = std::uint32_t>
std::optional<Number> number_from(std::string_view text) {
  Number number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Takes a decimal number, and then `after`, from the front of a text. nullopt, and the text stays,
/// when it does not begin so.
std::optional<std::uint32_t> take_number(std::string_view& text, std::string_view after);

}  // namespace ingot
