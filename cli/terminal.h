#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::cli {

/// True when stderr is a terminal that shows a progress bar (not TERM=dumb).
bool stderr_is_terminal();
/// True when text on this stream (1 stdout, 2 stderr) may be coloured: a terminal, no NO_COLOR, not
/// TERM=dumb.
bool may_colour(int stream);
/// Columns of the terminal on stderr, 80 when unknown.
int terminal_width();

/// `689.5 GB`, decimal units, three significant digits.
std::string human_bytes(std::uint64_t n_bytes);
/// `1h 02m`, `3m 05s`, `4.2 s`.
std::string human_seconds(double seconds);
/// `12,345,678`.
std::string with_commas(std::uint64_t value);

/// Rows of text in aligned columns, printable; numbers to the right when `right[i]`.
std::string text_table(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& right);

/// A printable line for each remark: `warning: ...`.
std::string remark_lines(std::string_view kind, const std::vector<std::string>& remarks);

/// The two ends of a line of text: bold where `stream` may be coloured, else nothing.
struct Emphasis {
  std::string_view on, off;
};
Emphasis emphasis(int stream);

/// From here on SIGINT and SIGTERM only set a flag, the first time; a second one ends the process
/// at once.
void install_stop_signals();
/// Whether one of them came; read by long jobs.
bool stop_requested();
/// Which one, or 0.
int stop_signal();

}  // namespace ingot::cli
