#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "inference/tokenizer/bpe.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/pre_tokenizer.h"

namespace ingot::inference {

/// Finds any of a list of texts in another: the leftmost, and of those that start there the
/// longest. Texts need no memory beyond their own.
class TextFinder {
 public:
  TextFinder() = default;
  /// Empty texts are never found. The first of equal texts counts.
  explicit TextFinder(const std::vector<std::string>& texts);

  struct Found {
    Span span;
    std::size_t index = 0;  ///< index in the list given
  };
  /// The next at or after `from`.
  [[nodiscard]] std::optional<Found> find(std::string_view text, std::size_t from,
                                          TextWork& work) const;

 private:
  [[nodiscard]] std::optional<Found> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<std::pair<std::string, std::size_t>> sorted_;  // texts with their indices
  std::array<bool, 256> starts_{};                           // true for each first byte of a text
};

/// A token that is found in the text before the model sees it, whether special or not.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< found only where its neighbours are no word characters
  bool left_strip = false;   ///< the token takes white space before it
  bool right_strip = false;  ///< the token takes white space behind it
  bool normalized = false;   ///< found in the normalized text, itself normalized
  bool special = false;      ///< left out when decoding without special tokens
};

/// A part of a text: an added token, or a text for the model.
struct Stretch {
  std::string_view text;
  std::optional<std::int32_t> id;
};

/// The list `added_tokens` of tokenizer.json.
class AddedTokens {
 public:
  /// Reads the added tokens. Throws kCorrupt for two tokens of one id or one text, among these or
  /// in the vocabulary.
  static AddedTokens parse(const formats::Json* value, const Vocabulary& vocabulary,
                           const Normalizer& normalizer);

  /// Returns the added token with this id or text, or null.
  [[nodiscard]] const AddedToken* by_id(std::int32_t id) const;
  [[nodiscard]] const AddedToken* by_content(std::string_view content) const;
  /// The highest id + 1.
  [[nodiscard]] std::size_t size() const { return size_; }

  enum class Round : std::uint8_t { kRaw, kNormalized };
  /// Cuts `text` at the tokens that belong to this round, leftmost and longest first; no stretch of
  /// text is empty.
  [[nodiscard]] std::vector<Stretch> cut(std::string_view text, Round round, TextWork& work) const;

 private:
  void add(AddedToken token, const Component& component, const Vocabulary& vocabulary);
  void make_finders(const Normalizer& normalizer);

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::int32_t, std::size_t> by_id_;
  std::unordered_map<std::string, std::size_t> by_content_;
  TextFinder raw_, normalized_;  // finders of tokens, by index in tokens_
  std::size_t size_ = 0;
};

}  // namespace ingot::inference
