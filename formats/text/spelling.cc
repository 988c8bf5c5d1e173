#include "formats/text/spelling.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/printable.h"

namespace ingot {
namespace {

// Damerau's distance with three rows: insert, delete, replace, swap neighbours. Whatever reaches
// `enough` is as good as that: most names are given up after a few letters.
std::size_t edits(std::string_view a, std::string_view b, std::size_t enough) {
  const std::size_t apart = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  if (apart >= enough) return enough;
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    // A swap reaches two rows back.
    if (std::min(*std::ranges::min_element(row), *std::ranges::min_element(last)) >= enough)
      return enough;
    before.swap(last);
    last.swap(row);
  }
  return std::min(last[b.size()], enough);
}

}  // namespace

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> choices) {
  if (word.size() > kLongestSpelling || std::ranges::find(choices, word) != choices.end())
    return {};
  const auto shared = [&](std::string_view choice) {
    return std::ranges::mismatch(word, choice).in1 - word.begin();
  };
  std::string_view nearest;
  std::size_t fewest = std::min(std::max<std::size_t>(word.size() / 3, 1), kMostEdits);
  for (const std::string_view choice : choices) {
    const std::size_t n = edits(word, choice, fewest + 1);
    if (n > fewest) continue;
    if (n == fewest && !nearest.empty() && shared(choice) <= shared(nearest)) continue;
    fewest = n;
    nearest = choice;
  }
  if (!nearest.empty() || word.size() < kShortestBeginning) return nearest;
  const auto begins = [&](std::string_view choice) { return choice.starts_with(word); };
  const auto first = std::ranges::find_if(choices, begins);
  return std::ranges::count_if(choices, begins) == 1 ? *first : std::string_view();
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> choices) {
  const std::string_view nearest = nearest_word(word, choices);
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", printable(nearest));
}

std::string meaning_of(std::string_view word, std::span<const Spoken> spoken,
                       std::span<const std::string_view> choices) {
  const auto row = std::ranges::find(spoken, word, &Spoken::word);
  return row == spoken.end() ? did_you_mean(word, choices) : fmt::format("; {}", row->means);
}

void refuse_word(std::string_view what, std::string_view word,
                 std::span<const std::string_view> choices) {
  throw Error(ErrorCode::kInvalidArgument, "{} '{}' is none of {}{}", what, word,
              fmt::join(choices, ", "), did_you_mean(word, choices));
}

}  // namespace ingot
