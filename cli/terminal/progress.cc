#include "cli/terminal/progress.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/figures.h"

namespace ingot::cli {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{30};

}  // namespace

Progress::Progress(std::string_view mode, std::string_view what, Unit unit)
    : style_(Style::kNone), unit_(unit), what_(what), began_(Clock::now()), shown_(began_) {
  if (mode == "always" || (mode == "auto" && stderr_is_terminal())) {
    style_ = Style::kBar;
  } else if (mode == "auto") {
    style_ = Style::kLines;
  } else if (mode != "never") {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--progress '{}' is none of auto, always, never", mode));
  }
}

Progress::~Progress() {
  if (bar_is_drawn_) std::cerr << "\n" << std::flush;
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  if (style_ == Style::kNone) return;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (!has_first_) {
    has_first_ = true;
    first_ = done;
    began_ = now;
  }
  done_ = std::max(done_, done);
  total_ = total;
  elapsed_seconds_ = std::chrono::duration<double>(now - began_).count();
  if (style_ == Style::kBar) {
    if (bar_is_drawn_ && now - shown_ < kBarInterval) return;
    // One write per state, and the rest of the old line erased, so that it does not flicker.
    std::cerr << fmt::format("\r{}\033[K", bar_text()) << std::flush;
    bar_is_drawn_ = true;
  } else {
    if (now - shown_ < kLineInterval) return;
    std::cerr << state_text() + "\n" << std::flush;
  }
  shown_ = now;
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (bar_is_drawn_) std::cerr << "\r\033[K" << std::flush;
  bar_is_drawn_ = false;
  style_ = Style::kNone;
}

double Progress::fraction_done() const {
  if (total_ == 0) return 1;
  return static_cast<double>(std::min(done_, total_)) / static_cast<double>(total_);
}

std::string Progress::state_text() const {
  const auto amount = [&](std::uint64_t n) {
    return unit_ == Unit::kBytes ? bytes_text(n) : count_text(n);
  };
  std::string text = fmt::format("{} {:3.0f}%  {} of {}", what_, 100 * fraction_done(),
                                 amount(done_), amount(total_));
  const auto fresh = static_cast<double>(done_ - first_);
  // A rate of the first moments would only mislead.
  if (elapsed_seconds_ < 0.5 || fresh <= 0) return text;
  const double rate = fresh / elapsed_seconds_;
  if (unit_ == Unit::kBytes) {
    text += fmt::format("  {}/s", bytes_text(static_cast<std::uint64_t>(rate)));
  }
  if (done_ < total_) {
    text += fmt::format("  {} left", seconds_text(static_cast<double>(total_ - done_) / rate));
  }
  return text;
}

std::string Progress::bar_text() const {
  // What the text takes at most; the cells depend on the terminal alone, so that the bar stands
  // still.
  constexpr int kTextWidth = 62;
  constexpr int kFewestCells = 8, kMostCells = 24;
  const int width = std::max(terminal_width(), 20) - 1;
  const std::string text = state_text();
  const int cells = std::min(width - kTextWidth, kMostCells);
  if (cells < kFewestCells) return text.substr(0, static_cast<std::size_t>(width));
  const auto filled = static_cast<std::size_t>(fraction_done() * cells);
  const std::string bar =
      std::string(filled, '#') + std::string(static_cast<std::size_t>(cells) - filled, '.');
  return fmt::format("[{}] {}", bar, text).substr(0, static_cast<std::size_t>(width));
}

}  // namespace ingot::cli
