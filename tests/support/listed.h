#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::testing {

/// The parts of a text between a separator, without white space around them.
inline std::vector<std::string> listed(std::string_view text, std::string_view separator = ";") {
  constexpr std::string_view kSpace = " \n";
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    std::string_view part = text.substr(0, end);
    part.remove_prefix(std::min(part.find_first_not_of(kSpace), part.size()));
    parts.emplace_back(part.substr(0, part.find_last_not_of(kSpace) + 1));
    if (end != std::string_view::npos) text.remove_prefix(end + separator.size());
  }
  return parts;
}

}  // namespace ingot::testing
