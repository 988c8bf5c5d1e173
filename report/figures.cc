#include "report/figures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace ingot {
namespace {

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

std::string seconds_text(double seconds) {
  if (!(seconds >= 0)) seconds = 0;
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::min(seconds + 0.5, 3.6e9));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
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

std::string percent_text(double part) {
  return fmt::format("{:.2f}%", 100 * part);
}

}  // namespace ingot
