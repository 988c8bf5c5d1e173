#include "cli/terminal/progress.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/terminal/output_guard.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "report/figures.h"
#include "report/table_text.h"

namespace ingot::cli {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{30};
// A rate of the first moments would only mislead.
constexpr double kLeastSeconds = 0.5;

}  // namespace

double Progress::Phase::fraction() const {
  if (total == 0) return 1;
  return static_cast<double>(std::min(done, total)) / static_cast<double>(total);
}

std::string Progress::Phase::amount(std::uint64_t n) const {
  return unit == Unit::kBytes ? bytes_text(n) : count_text(n);
}

Progress::Progress(std::string_view mode, std::string_view phase, Unit unit)
    : style_(Style::kNone),
      receiver_(session().progress),
      is_asked_for_(mode == "always" && !session().is_quiet),
      began_(Clock::now()),
      shown_(began_),
      used_(resource_use()) {
  if (mode != "always" && mode != "auto" && mode != "never") {
    throw Error(ErrorCode::kInvalidArgument, "--progress '{}' is none of auto, always, never",
                mode);
  }
  if (mode != "never" && !session().is_quiet && session().is_of_program)
    style_ = mode == "always" || stderr_is_terminal() ? Style::kBar : Style::kLines;
  phases_.push_back({.name = std::string(phase), .unit = unit});
  if (!session().is_of_program) return;
  catch_status_signal();
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Progress::~Progress() {
  watcher_.request_stop();
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (bar_is_drawn_) write_controls("\n");
}

// Draws while the threads of the job have no news, and answers waiting threads. A signal wakes no
// thread: it sets a flag that is checked here.
void Progress::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, kBarInterval, [] { return false; });
    if (stop.stop_requested() || is_finished_) continue;
    threads_.look();
    if (status_was_asked()) {
      write_controls(
          fmt::format("{}{}\n", bar_is_drawn_ ? "\r\033[K" : "", fmt::join(state(), "  ")));
      shown_ = {};
    }
    // Nothing is known of a job that has not begun.
    if (phases_.back().has_first || phases_.size() > 1) show();
  }
}

void Progress::begin(std::string_view phase, Unit unit) {
  const std::lock_guard lock(mutex_);
  if (phases_.back().name == phase || is_finished_) return;
  if (receiver_) receiver_(phase, 0, 0);
  end_phase();
  // A bar that shows the phase before it is out of date.
  if (style_ == Style::kBar) shown_ = {};
  phases_.push_back({.name = std::string(phase), .unit = unit});
}

void Progress::end_phase() {
  const ResourceUse now = resource_use();
  ResourceUse& use = phases_.back().use;
  const ResourceUse wanted = threads_.take();
  use = now - used_;
  use.wanted_core_seconds = wanted.wanted_core_seconds;
  use.waited_disk_seconds = wanted.waited_disk_seconds;
  used_ = now;
  began_ = Clock::now();
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  Phase& phase = phases_.back();
  if (!phase.has_first) {
    phase.has_first = true;
    phase.first = done;
    began_ = Clock::now();
  }
  phase.done = std::max(phase.done, done);
  phase.total = total;
  if (receiver_) receiver_(phase.name, phase.done, total);
  show();
}

// The caller holds the lock.
void Progress::show() {
  const Clock::time_point now = Clock::now();
  if (is_finished_ || style_ == Style::kNone) return;
  if (style_ == Style::kBar) {
    if (bar_is_drawn_ && now - shown_ < kBarInterval) return;
    // One write per state, and the rest of the old line erased, so that it does not flicker.
    write_controls(fmt::format("\r{}\033[K", bar_text()));
    bar_is_drawn_ = true;
  } else {
    if (now - shown_ < kLineInterval) return;
    std::cerr << fmt::format("{}\n", fmt::join(state(), "  ")) << std::flush;
  }
  shown_ = now;
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (is_finished_) return;
  if (bar_is_drawn_) write_controls("\r\033[K");
  bar_is_drawn_ = false;
  is_finished_ = true;
  end_phase();
}

// The known facts, the most important first: phase and part, time left, amounts, rate.
std::vector<std::string> Progress::state() const {
  const Phase& phase = phases_.back();
  if (!phase.has_first) return {phase.name};
  std::vector<std::string> words = {
      fmt::format("{} {:3.0f}%", phase.name, 100 * phase.fraction()),
      fmt::format("{} of {}", phase.amount(phase.done), phase.amount(phase.total))};
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const auto fresh = static_cast<double>(phase.done - phase.first);
  if (seconds < kLeastSeconds || fresh <= 0) return words;
  const double rate = fresh / seconds;
  if (phase.unit == Unit::kBytes)
    words.push_back(fmt::format("{}/s", bytes_text(static_cast<std::uint64_t>(rate))));
  if (phase.done < phase.total) {
    words.push_back(
        fmt::format("{} left", seconds_text(static_cast<double>(phase.total - phase.done) / rate)));
  }
  return words;
}

// Writes as many whole facts as fit, then a bar in the rest of the line.
std::string Progress::bar_text() const {
  // The most columns of the text without the name of the phase. The cells depend only on these two
  // and the terminal, so that the bar keeps its place.
  constexpr std::size_t kFactColumns = 50;
  constexpr std::size_t kFewestCells = 8, kMostCells = 60, kFrame = 3;
  const auto width = static_cast<std::size_t>(std::max(terminal_width(), 20)) - 1;
  if (!phases_.back().has_first) return phases_.back().name.substr(0, width);
  std::vector<std::string> words = state();
  std::string text = fmt::format("{}", fmt::join(words, "  "));
  // The time left stays longest, with the phase.
  while (text.size() > width && words.size() > 1) {
    words.erase(words.size() > 2 ? words.end() - 2 : words.end() - 1);
    text = fmt::format("{}", fmt::join(words, "  "));
  }
  const std::size_t others = phases_.back().name.size() + kFactColumns + kFrame;
  if (width < others + kFewestCells) return text.substr(0, width);
  const std::size_t cells = std::min(width - others, kMostCells);
  const auto filled =
      static_cast<std::size_t>(phases_.back().fraction() * static_cast<double>(cells));
  return fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(cells - filled, '.'), text)
      .substr(0, width);
}

// The caller holds the lock.
bool Progress::is_worth_telling() const {
  constexpr double kWorthTelling = 1;
  double seconds = 0;
  for (const Phase& phase : phases_) seconds += phase.use.seconds;
  return style_ != Style::kNone && (seconds >= kWorthTelling || is_asked_for_);
}

std::string Progress::limits(std::size_t threads) const {
  const std::lock_guard lock(mutex_);
  if (!is_worth_telling()) return {};
  return fmt::format("{}: {}\n", longest().name,
                     limits_text(reading_shares(longest().use, threads)));
}

std::vector<WorkShare> Progress::limit_shares(std::size_t threads) const {
  const std::lock_guard lock(mutex_);
  return is_asked_for_ ? reading_shares(longest().use, threads) : std::vector<WorkShare>();
}

const Progress::Phase& Progress::longest() const {
  return *std::ranges::max_element(phases_, {},
                                   [](const Phase& phase) { return phase.use.seconds; });
}

std::string Progress::summary(std::size_t threads) const {
  constexpr double kWorthALine = 0.05;
  const std::lock_guard lock(mutex_);
  if (!is_worth_telling()) return {};
  Table table{.columns = {"phase", number("time"), number("done"), number("rate"), "limited by"}};
  for (const Phase& phase : phases_) {
    const double took = phase.use.seconds;
    if (took < kWorthALine && phase.done == 0) continue;
    const std::uint64_t fresh = phase.done - phase.first;
    const bool has_rate = phase.unit == Unit::kBytes && fresh > 0 && took > 0;
    table.rows.push_back(
        {phase.name, seconds_text(took), fresh > 0 ? phase.amount(fresh) : "",
         has_rate ? bytes_text(static_cast<std::uint64_t>(static_cast<double>(fresh) / took)) + "/s"
                  : "",
         limit_text(phase.use, threads)});
  }
  return table.rows.empty() ? std::string() : table_text(table, report_width(2));
}

}  // namespace ingot::cli
