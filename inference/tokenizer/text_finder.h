#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {

/// Finds any of a list of texts in another: the leftmost, and of those that start there the
/// longest. Texts need no memory beyond their own.
class TextFinder {
 public:
  TextFinder() = default;
  /// Empty texts are never found. Of equal texts the first counts.
  explicit TextFinder(const std::vector<std::string>& texts);

  struct Found {
    Span span;
    std::size_t index = 0;  ///< in the list given
  };
  /// The next at or after `from`.
  [[nodiscard]] std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  [[nodiscard]] std::optional<Found> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<std::pair<std::string, std::size_t>> sorted_;  // with their indices
  std::array<bool, 256> starts_{};                           // by first byte
};

}  // namespace ingot::inference
