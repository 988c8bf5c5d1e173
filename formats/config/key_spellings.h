#pragma once

#include <array>
#include <span>
#include <string_view>

namespace ingot::formats {

/// A key of config.json for which families have names of their own.
struct KeySpellings {
  std::string_view key;  ///< the usual one
  /// Further ones. Each ends with 0, as key does.
  std::array<std::string_view, 4> others = {};
};

/// The further spellings of `key`, some of them empty; none where there is one spelling.
std::span<const std::string_view> other_spellings(std::string_view key);

}  // namespace ingot::formats
