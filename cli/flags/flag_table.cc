#include "cli/flags/flag_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"

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

// Damerau's distance with three rows: insert, delete, replace, swap neighbours.
std::size_t edits(std::string_view a, std::string_view b) {
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
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

void refuse_idle_flags(std::span<const IdleFlag> flags) {
  for (const IdleFlag& flag : flags) {
    if (!flag.is_given || flag.acts) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} has no effect here: it belongs to {}", flag.flag, flag.belongs_to));
  }
}

Flag required(std::string name, FlagTarget target, std::string help) {
  return {std::move(name), target, std::move(help), {.is_required = true}};
}

Flag threads_flag(std::size_t* target) {
  return {
      "--threads", target, "threads (default: every processor)", {.range = NumberRange{1, 1024}}};
}

Flag progress_flag(std::string* target) {
  return {"--progress", target, "progress on stderr", {.choices = {"auto", "always", "never"}}};
}

Flag json_flag(bool* target) {
  return {"--json", target, "one JSON document on stdout"};
}

std::size_t threads_of(std::size_t given) {
  return given == 0 ? available_processors() : given;
}

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

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> choices) {
  constexpr std::size_t kLongestWord = 64;
  if (word.size() > kLongestWord) return {};
  std::string_view nearest;
  std::size_t fewest = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string_view choice : choices) {
    if (const std::size_t n = edits(word, choice); n < fewest) {
      fewest = n;
      nearest = choice;
    }
  }
  return nearest;
}

}  // namespace ingot::cli
