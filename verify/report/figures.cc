#include "verify/report/figures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "formats/json/json.h"

namespace ingot::verify {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Bytes of the UTF-8 character at the start of the text; 0 when there is none.
std::size_t character_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t n = lead < 0x80U ? 1 : lead < 0xE0U ? 2 : lead < 0xF0U ? 3 : 4;
  return n <= text.size() && formats::is_utf8(text.substr(0, n)) ? n : 0;
}

bool is_control(std::string_view character) {
  const auto byte = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return (byte < 0x20U && byte != '\t' && byte != '\n') || byte == 0x7FU;
  return character.size() == 2 && byte == 0xC2U &&
         static_cast<unsigned char>(character[1]) < 0xA0U;  // U+0080 to U+009F
}

// Counts are among the figures: none is to read as 5.69e+04.
std::string digits_text(double value, int digits) {
  constexpr double kLargest = 1e18;
  if (std::isnan(value)) return "NaN";
  // Half a unit below the power of ten, rounding would reach it.
  if (std::abs(value) < std::pow(10, digits) - 0.5 || !(std::abs(value) < kLargest))
    return fmt::format("{:.{}g}", value, digits);
  return fmt::format("{}{}", value < 0 ? "-" : "",
                     count_text(static_cast<std::uint64_t>(std::round(std::abs(value)))));
}

}  // namespace

std::string count_text(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string cosine_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (value == 1) return "1";
  return fmt::format("{:.{}f}", value, std::abs(1 - value) < 1e-5 ? 9 : 6);
}

std::string short_text(double value) {
  return digits_text(value, 3);
}

std::string exact_text(double value) {
  return digits_text(value, 6);
}

std::string decibel_text(double value) {
  if (std::isnan(value)) return "NaN";
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : "exact";
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0";
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return percent < 0.001 ? "<0.001%" : fmt::format("{:.3f}%", percent);
}

std::string bytes_text(std::uint64_t n_bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(n_bytes);
  std::size_t unit = 0;
  // 999.5 would print as 1000: the next unit reads better.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::string printable_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t n = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(n, 1));
    out += n == 0 || is_control(character) ? kReplacement : character;
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace ingot::verify
