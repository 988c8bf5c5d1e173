#include "formats/container/sections.h"

#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {

Sections Sections::equal(std::size_t n) {
  INGOT_CHECK(n > 0 && n <= kMax);
  Sections sections;
  if (n > 1) sections.shares_.assign(n, 1);
  sections.total_ = n;
  return sections;
}

std::optional<Sections> Sections::of_lengths(std::span<const std::uint64_t> lengths) {
  if (lengths.empty() || lengths.size() > kMax) return std::nullopt;
  std::uint64_t divisor = 0;
  if (lengths.size() == 1 && lengths[0] > 0) return Sections();
  for (const std::uint64_t length : lengths) {
    if (length == 0) return std::nullopt;
    divisor = std::gcd(divisor, length);
  }
  Sections sections;
  sections.total_ = 0;
  for (const std::uint64_t length : lengths) {
    const std::uint64_t share = length / divisor;
    if (share > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    sections.shares_.push_back(static_cast<std::uint32_t>(share));
    sections.total_ += share;
  }
  return sections;
}

bool Sections::divide(std::uint64_t length, std::uint64_t n, std::uint64_t unit) const {
  const std::uint64_t each = step(length);
  return length % total_ == 0 && each % n == 0 && each / n % unit == 0;
}

std::uint64_t Sections::step(std::uint64_t length) const {
  return length % total_ == 0 ? length / total_ : 0;
}

Json sections_json(const Sections& sections) {
  if (sections.is_equal()) return sections.count();
  return sections.shares();
}

Sections parse_sections(const Json& json, std::string_view where) {
  const auto number = [](const Json& value) {
    return whole_number(value, std::numeric_limits<std::uint64_t>::max()).value_or(0);
  };
  if (json.is_array()) {
    std::vector<std::uint64_t> lengths;
    for (const Json& length : json) {
      lengths.push_back(number(length));
      if (lengths.size() > Sections::kMax) break;
    }
    if (const auto sections = Sections::of_lengths(lengths)) return *sections;
  } else if (const std::uint64_t n = number(json); n > 0 && n <= Sections::kMax) {
    return Sections::equal(n);
  }
  fail_json(where, fmt::format("'sections' is neither a number from 1 to {} nor a list of the "
                               "lengths of as many",
                               Sections::kMax));
}

}  // namespace ingot::formats
