#include "cli/terminal.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "formats/base/printable.h"

namespace ingot::cli {
namespace {

// Written by the handler, read by every thread: lock-free and all that a handler may touch.
volatile std::sig_atomic_t received_signal = 0;

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

// Columns that a text takes: its code points.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

bool stderr_is_terminal() {
  return ::isatty(STDERR_FILENO) == 1 && !is_dumb();
}

bool may_colour(int stream) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  return ::isatty(stream) == 1 && !is_dumb();
}

int terminal_width() {
  struct winsize size {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string human_bytes(std::uint64_t n_bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (n_bytes < 1000) return fmt::format("{} B", n_bytes);
  double value = static_cast<double>(n_bytes) / 1000;
  std::size_t unit = 0;
  // 999.5 would print as 1000: the next unit reads better.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (!(seconds >= 0)) seconds = 0;
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::min(seconds + 0.5, 3.6e9));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
}

std::string with_commas(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string text_table(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& right) {
  std::vector<std::vector<std::string>> cells = rows;
  std::vector<std::size_t> widths;
  for (auto& row : cells) {
    for (std::string& cell : row) cell = printable(cell);
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      line += "  ";
      line += c < right.size() && right[c] ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string remark_lines(std::string_view kind, const std::vector<std::string>& remarks) {
  std::string text;
  for (const std::string& remark : remarks)
    text += fmt::format("{}: {}\n", kind, printable_lines(remark));
  return text;
}

Emphasis emphasis(int stream) {
  if (may_colour(stream)) return {"\033[1m", "\033[0m"};
  return {};
}

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { received_signal = number; };
  // Once: whoever presses Ctrl-C twice wants out now, and what is on disk can be resumed anyway.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() {
  return received_signal != 0;
}

int stop_signal() {
  return received_signal;
}

}  // namespace ingot::cli
