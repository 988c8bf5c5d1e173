#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The likeliest meaning of a mistyped word. One mechanism for commands, options, their values,
// roles and names of tensors.

namespace ingot {

/// True if `words` has the word.
inline bool is_in(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// The choice that a mistyped word most likely meant, or empty when none is near: fewest edits,
/// neighbouring letters swapped counting as one, at most a third of the word and at most
/// kMostEdits; where several are as near, the one with the longest common beginning, and the first.
/// If none is near: the only choice that begins with the word, if the word has at least
/// kShortestBeginning bytes. Empty for a word that is a choice, which is refused for another
/// reason, and for words of more than kLongestSpelling bytes.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> choices);
inline constexpr std::size_t kMostEdits = 6;
inline constexpr std::size_t kShortestBeginning = 4;
inline constexpr std::size_t kLongestSpelling = 160;

template <typename Rows, typename Name>
std::vector<std::string_view> row_names(const Rows& rows, const Name& name) {
  std::vector<std::string_view> names;
  for (const auto& row : rows) names.push_back(std::invoke(name, row));
  return names;
}

/// `; did you mean WORD?`, or empty: for the end of a message.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> choices);
/// `; did you mean WORD?` for the rows of a table, by the name of each; or empty.
template <typename Rows, typename Name>
std::string did_you_mean(std::string_view word, const Rows& rows, const Name& name) {
  return did_you_mean(word, row_names(rows, name));
}

/// A word of other programs, and its meaning here.
struct Spoken {
  std::string_view word, means;
};
/// Returns `; MEANS` for a word that `spoken` has, else did_you_mean().
std::string meaning_of(std::string_view word, std::span<const Spoken> spoken,
                       std::span<const std::string_view> choices);

/// Throws kInvalidArgument: `WHAT 'WORD' is none of A, B, C; did you mean A?`
[[noreturn]] void refuse_word(std::string_view what, std::string_view word,
                              std::span<const std::string_view> choices);
template <typename Rows, typename Name>
[[noreturn]] void refuse_word(std::string_view what, std::string_view word, const Rows& rows,
                              const Name& name) {
  refuse_word(what, word, row_names(rows, name));
}
/// The value of an enum whose values have these words, in their order; else refuse_word().
template <typename Enum>
Enum parse_word(std::string_view what, std::string_view word,
                std::span<const std::string_view> words) {
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) refuse_word(what, word, words);
  return static_cast<Enum>(found - words.begin());
}

}  // namespace ingot
