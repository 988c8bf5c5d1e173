#include "cli/size_option.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::cli {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"K", 1e3},
    Unit{"KB", 1e3},
    Unit{"M", 1e6},
    Unit{"MB", 1e6},
    Unit{"G", 1e9},
    Unit{"GB", 1e9},
    Unit{"T", 1e12},
    Unit{"TB", 1e12},
    Unit{"KIB", 1024.},
    Unit{"MIB", 1048576.},
    Unit{"GIB", 1073741824.},
    Unit{"TIB", 1099511627776.},
};

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  // strtod alone would also take exponents and hexadecimal digits.
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string copy(text.substr(0, digits));
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  const bool starts_with_digit = digits > 0 && text[0] != '.' && *end == '\0';
  std::string unit;
  for (const char c : text.substr(digits))
    unit += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  for (const Unit& row : kUnits) {
    if (!starts_with_digit || unit != row.name) continue;
    const double bytes = number * row.bytes;
    // 2^62 keeps sums of a few sizes within 64 bits.
    if (std::isfinite(bytes) && bytes >= 1 && bytes <= 4611686018427387904.0)
      return static_cast<std::uint64_t>(bytes);
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} '{}' is not a size (give bytes, or a number with KB, MB, GB, KiB, MiB, GiB)",
                  option, text));
}

}  // namespace ingot::cli
