#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// The parts of one side of a tensor, one after the other, each cut or padded by itself. Gate and
/// up in one stack are two equal parts; queries, keys and values in one weight have lengths of
/// their own. Only the ratio of the lengths is kept, so that the sections of a weight are also
/// those of its scales.
class Sections {
 public:
  static constexpr std::size_t kMax = 64;

  /// The whole side is one section.
  Sections() = default;
  /// `n` sections of the same length, 1 to kMax.
  static Sections equal(std::size_t n);
  /// Sections of these lengths. Returns nullopt for none, for more than kMax, for one of 0, and for
  /// lengths whose ratio has numbers of 2^32 or more.
  static std::optional<Sections> of_lengths(std::span<const std::uint64_t> lengths);

  [[nodiscard]] std::size_t count() const { return shares_.empty() ? 1 : shares_.size(); }
  [[nodiscard]] bool is_equal() const { return total_ == count(); }
  /// True if a side of `length` elements has sections of whole elements that `n` slices divide, in
  /// multiples of `unit`. `n` and `unit` are at least 1.
  [[nodiscard]] bool divide(std::uint64_t length, std::uint64_t n = 1,
                            std::uint64_t unit = 1) const;
  /// The largest number that divides every section of such a side; the section's length where all
  /// are equal. 0 where they are not of whole elements.
  [[nodiscard]] std::uint64_t step(std::uint64_t length) const;
  /// Elements in section `i` of a side that they divide().
  [[nodiscard]] std::uint64_t length_of(std::size_t i, std::uint64_t length) const {
    return step(length) * (shares_.empty() ? 1 : shares_[i]);
  }
  /// Lengths of the sections, without a divisor that is common to all; empty for one section.
  [[nodiscard]] const std::vector<std::uint32_t>& shares() const { return shares_; }

  bool operator==(const Sections&) const = default;

 private:
  std::vector<std::uint32_t> shares_;
  std::uint64_t total_ = 1;
};

/// The number of equal sections, or the list of shares().
Json sections_json(const Sections& sections);
/// Throws kCorrupt naming `where`.
Sections parse_sections(const Json& json, std::string_view where);

}  // namespace ingot::formats
