#include "cli/terminal/line_editor.h"

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <iostream>

#include <histedit.h>
#include <unistd.h>

namespace ingot::cli {

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
};

namespace {

char* prompt_text(EditLine* /*editor*/) {
  static char text[] = "> ";
  return text;
}

constexpr int kHistoryLines = 1000;

}  // namespace

LineEditor::LineEditor() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return;
  // Characters of several bytes are one to the editor.
  std::setlocale(LC_CTYPE, "");
  terminal_ = new Terminal;
  // The prompt is no data: it goes to stderr.
  terminal_->editor = el_init("ingot", stdin, stderr, stderr);
  terminal_->history = history_init();
  HistEvent event{};
  history(terminal_->history, &event, H_SETSIZE, kHistoryLines);
  el_set(terminal_->editor, EL_PROMPT, &prompt_text);
  el_set(terminal_->editor, EL_EDITOR, "emacs");
  el_set(terminal_->editor, EL_HIST, history, terminal_->history);
}

LineEditor::~LineEditor() {
  if (terminal_ == nullptr) return;
  history_end(terminal_->history);
  el_end(terminal_->editor);
  delete terminal_;
}

std::optional<std::string> LineEditor::read() {
  std::string line;
  if (terminal_ == nullptr) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  int n_bytes = 0;
  errno = 0;
  const char* text = el_gets(terminal_->editor, &n_bytes);
  if (text == nullptr) {
    // Ctrl-C at the prompt drops the line and not the program.
    if (errno == EINTR) {
      el_reset(terminal_->editor);
      std::cerr << "\n";
      return std::string();
    }
    return std::nullopt;
  }
  line.assign(text, static_cast<std::size_t>(n_bytes));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  if (!line.empty()) {
    HistEvent event{};
    history(terminal_->history, &event, H_ENTER, line.c_str());
  }
  return line;
}

}  // namespace ingot::cli
