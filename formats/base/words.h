#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

/// ASCII only; all other bytes stay.
constexpr char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
std::string lower_case(std::string_view text);

/// A name between its dots.
std::vector<std::string_view> name_words(std::string_view name);

/// Takes a decimal number, and then `after`, from the front of a text. nullopt, and the text stays,
/// when it does not begin so.
std::optional<std::uint32_t> take_number(std::string_view& text, std::string_view after);

}  // namespace ingot
