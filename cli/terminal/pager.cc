#include "cli/terminal/pager.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <ostream>

#include <sys/wait.h>
#include <unistd.h>

#include "cli/terminal/output_guard.h"
#include "cli/terminal/standard_output.h"
#include "cli/terminal/terminal.h"

namespace ingot::cli {

void show_page(std::string_view text) {
  const char* const program = std::getenv("PAGER");
  std::FILE* pipe = nullptr;
  if (program != nullptr && *program != '\0' && ::isatty(STDOUT_FILENO) == 1) {
    // Colours are shown, and a page that fits the screen stays on it.
    ::setenv("LESS", "FRX", 0);
    std::cout.flush();
    pipe = ::popen(program, "w");
  }
  if (pipe == nullptr) {
    write_data(text);
    return;
  }
  StandardOutput descriptor(::fileno(pipe));
  GuardedBuffer guarded(descriptor, !emphasis(STDOUT_FILENO).on.empty());
  std::ostream page(&guarded);
  // A reader who has seen enough closes the pipe.
  page << text << std::flush;
  // The shell tells of a program that it cannot start, by these numbers.
  constexpr int kNotRun = 126, kNotFound = 127;
  const int end = ::pclose(pipe);
  if (WIFEXITED(end) && (WEXITSTATUS(end) == kNotRun || WEXITSTATUS(end) == kNotFound))
    write_data(text);
}

}  // namespace ingot::cli
