#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include <fmt/ranges.h>

namespace ingot {

/// The first of some words or numbers in a line: `a, b and 6 more`, with `quote` around each; empty
/// when there are none.
template <typename Entries>
std::string list_text(const Entries& entries, std::size_t most, std::string_view quote = "") {
  const std::span all(entries);
  if (all.empty()) return {};
  const std::string between = fmt::format("{0}, {0}", quote);
  std::string text =
      fmt::format("{0}{1}{0}", quote, fmt::join(all.first(std::min(all.size(), most)), between));
  if (all.size() > most) text += fmt::format(" and {} more", all.size() - most);
  return text;
}

}  // namespace ingot
