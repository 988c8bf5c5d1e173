#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/mpi/ranks.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/session.h"
#include "cli/terminal/standard_output.h"
#include "cli/terminal/terminal.h"
#include "engines/serving.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/text/spelling.h"
#include "library/current_error.h"

namespace ingot::cli {
namespace {

// Facts about the call that are known before anything can fail.
struct Call {
  std::string command;             ///< first word that is no option; empty when there is none
  std::vector<std::string> words;  ///< all, from the program's name on
};

Call first_look(int argc, char** argv) {
  Call call{.words = {argv, argv + argc}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    // A fault in the words is answered as they ask for.
    if (word == "--json") answer().is_json = true;
    if (call.command.empty() && !word.starts_with('-')) call.command = word;
  }
  answer().command = call.command;
  return call;
}

void require_known(const Call& call) {
  if (call.command.empty() || find_command(call.command) != nullptr) return;
  std::vector<std::string_view> names;
  for (const Command& command : commands()) names.push_back(command.name);
  throw Error(ErrorCode::kInvalidArgument, "no command '{}' (see ingot help){}",
              printable(call.command), did_you_mean(call.command, names));
}

// Threads have their own arenas of memory, each of which reserves 64 MiB of the address space:
// under a limit of that (ulimit -v) they share one.
void spare_address_space() {
#ifdef M_ARENA_MAX
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    ::mallopt(M_ARENA_MAX, 1);
#endif
}

int report(const Error& error) {
  answer().end_by(error);
  print_answer();
  if (!answer().is_json || answer().is_of_other) std::cerr << "error: " << error.what() << "\n";
  return kExitTrouble;
}

// The whole command that goes on with the job, where there is one.
void tell_of_resume(const Call& call) {
  const Command* command = find_command(call.command);
  if (command == nullptr || !command->continued_by) return;
  std::vector<std::string> words = call.words;
  const auto end = std::ranges::find(words, "--");
  const std::string option(*command->continued_by);
  if (!option.empty() && std::find(words.begin(), end, option) == end) words.insert(end, option);
  std::cerr << "continue with\n ";
  for (const std::string& word : words) std::cerr << " " << engines::shell_word(word);
  std::cerr << "\n";
}

int report_interrupted(const Call& call, const Error& error) {
  report(error);
  tell_of_resume(call);
  std::cout.flush();
  if (const int number = stop_signal(); number != 0) {
    // Die of the signal, so that a shell loop around us stops as well.
    std::signal(number, SIG_DFL);
    ::raise(number);
  }
  return kExitTrouble;
}

// The reader of our output has gone, as `| head` does: not a failure of ours.
bool reader_has_gone() {
  struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

int run(int argc, char** argv, const Call& call) {
  require_known(call);
  const std::function<int()> body = parse_command_line(argc, argv, call.command);
  if (!body) return kExitDone;
  const int code = body();
  print_answer();
  return code;
}

int guarded(int argc, char** argv) {
  Call call;
  try {
    call = first_look(argc, argv);
    session().read_line = [editor = std::shared_ptr<LineEditor>()]() mutable {
      if (editor == nullptr) editor = std::make_shared<LineEditor>();
      return editor->read();
    };
    return run(argc, argv, call);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) return report_interrupted(call, error);
    const int code = report(error);
    // A disk that became full while something was written.
    if (error.code() == ErrorCode::kNoSpace &&
        error.message().find("run again") != std::string::npos)
      tell_of_resume(call);
    return code;
  } catch (...) {
    return report(library::current_error());
  }
}

}  // namespace
}  // namespace ingot::cli

int main(int argc, char** argv) {
  ingot::cli::StandardOutput output(STDOUT_FILENO);
  std::streambuf* const own = std::cout.rdbuf(&output);
  // A closed pipe becomes a failed write, never a death in the middle of a conversion whose log is
  // piped.
  std::signal(SIGPIPE, SIG_IGN);
  // A file that becomes longer than `ulimit -f` allows is a failed write, too.
  std::signal(SIGXFSZ, SIG_IGN);
  // A signal that asks how far a command is must not kill one that has no progress to show.
  ingot::cli::pass_over_status_signal();
  ingot::cli::spare_address_space();
  int exit_code = ingot::cli::kExitTrouble;
  {
    const ingot::cli::OutputGuard guard;
    exit_code = ingot::cli::guarded(argc, argv);
  }
  std::cout.flush();
  std::cout.rdbuf(own);
  ingot::cli::end_all_ranks(exit_code);
  if (output.failure() == 0 || ingot::cli::reader_has_gone()) return exit_code;
  std::cerr << "error: cannot write to standard output: " << std::strerror(output.failure())
            << "\n";
  return ingot::cli::kExitTrouble;
}
