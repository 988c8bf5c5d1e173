#include "cli/terminal/terminal.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/terminal/output_guard.h"
#include "cli/terminal/session.h"
#include "formats/base/printable.h"
#include "formats/base/stop_scope.h"

namespace ingot::cli {
namespace {

// Written by the handler on any thread, read by all.
std::atomic<int> received_signal = 0;
std::atomic<bool> status_signal = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler sets them");

thread_local Session* own_session = nullptr;

std::ostream& nowhere() {
  thread_local std::ostream stream(nullptr);
  return stream;
}

bool is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

bool may_colour(int stream) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  return ::isatty(stream) == 1 && !is_dumb();
}

}  // namespace

bool stderr_is_terminal() {
  return ::isatty(STDERR_FILENO) == 1 && !is_dumb();
}

int terminal_width() {
  constexpr int kUsual = 80;
  const std::size_t width = report_width(STDERR_FILENO);
  return width > 0 ? static_cast<int>(width) : kUsual;
}

std::size_t report_width(int stream) {
  struct winsize size {};
  return ::ioctl(stream, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

Session& session() {
  static Session of_process;
  return own_session == nullptr ? of_process : *own_session;
}

SessionScope::SessionScope(Session& of) : before_(std::exchange(own_session, &of)) {}

SessionScope::~SessionScope() {
  own_session = before_;
}

std::ostream& out() {
  return session().is_of_program ? std::cout : nowhere();
}

std::ostream& errors() {
  return session().is_of_program ? std::cerr : nowhere();
}

std::ostream& notes() {
  return session().is_quiet ? nowhere() : errors();
}

std::string remark_lines(std::string_view kind, const std::vector<std::string>& remarks) {
  std::string text;
  for (const std::string& remark : remarks)
    text += fmt::format("{}: {}\n", kind, printable_lines(remark));
  return text;
}

Emphasis emphasis(int stream) {
  if (may_colour(stream)) return {kBoldOn, kBoldOff};
  return {};
}

std::uint64_t peak_memory() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

void catch_status_signal() {
  struct sigaction action {};
  action.sa_handler = [](int /*number*/) { status_signal = true; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

void pass_over_status_signal() {
  std::signal(SIGUSR1, SIG_IGN);
}

bool status_was_asked() {
  return status_signal.exchange(false);
}

namespace {

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { received_signal = number; };
  // Once: a user who presses Ctrl-C twice wants out now, and what is on disk can be resumed anyway.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};
  ::sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

bool stop_requested() {
  return received_signal != 0;
}

std::function<bool()> stop_question() {
  if (!session().is_of_program) return session().stop_requested;
  install_stop_signals();
  return stop_requested;
}

StopScope stop_at_signals(std::string_view what) {
  return {stop_question(), what};
}

int stop_signal() {
  return received_signal;
}

}  // namespace ingot::cli
