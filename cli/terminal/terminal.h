#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/stop_scope.h"

namespace ingot::cli {

/// True when stderr is a terminal that shows a progress bar (not TERM=dumb).
bool stderr_is_terminal();
/// Columns of the terminal on stderr, 80 when unknown.
int terminal_width();
/// Columns for text on stdout, or stderr (2): those of its terminal, or 0, which is any number,
/// when it is no terminal.
std::size_t report_width(int stream = 1);

/// Streams of this session for results, for errors, and for everything that is neither, which goes
/// nowhere under --quiet. The program's are the standard ones; a call of the library has none.
std::ostream& out();
std::ostream& errors();
std::ostream& notes();

/// A printable line for each remark: `warning: ...`.
std::string remark_lines(std::string_view kind, const std::vector<std::string>& remarks);

/// The two ends of a line of text: bold where `stream` (1 stdout, 2 stderr) may be coloured, which
/// is a terminal without NO_COLOR and TERM=dumb; else nothing. They are marks that OutputGuard
/// makes control sequences of.
struct Emphasis {
  std::string_view on, off;
};
Emphasis emphasis(int stream);

/// The most memory that this process had at once, in bytes.
std::uint64_t peak_memory();

/// From here on SIGUSR1 only sets a flag, which long jobs answer with a line of their state; before
/// that it is passed over.
void catch_status_signal();
void pass_over_status_signal();
/// True if SIGUSR1 came since this was last asked.
bool status_was_asked();

/// True if a signal came that ends the process.
bool stop_requested();
/// Tells long jobs, on any thread, if this session is to end. In the program SIGINT, SIGTERM and
/// SIGHUP only set a flag from here on, the first time; a second one ends the process at once. A
/// SIGHUP that is ignored, as under nohup, stays so.
std::function<bool()> stop_question();
/// The answer true while the scope lives ends its loops, `stopped while {what}`.
StopScope stop_at_signals(std::string_view what);
/// The signal that came, or 0.
int stop_signal();

}  // namespace ingot::cli
