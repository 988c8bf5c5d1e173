#pragma once

#include <algorithm>
#include <set>
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

/// Numbers as ranges of neighbours: `0, 2 to 5` with `to` between the ends of one and `between`
/// two.
template <typename Number>
std::string ranges_text(const std::set<Number>& numbers, std::string_view to,
                        std::string_view between) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const Number first = *at;
    Number last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    text += fmt::format("{}{}", text.empty() ? "" : between, first);
    if (last != first) text += fmt::format("{}{}", to, last);
  }
  return text;
}

}  // namespace ingot
