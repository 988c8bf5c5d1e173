#include "cli/terminal/answer.h"

#include <iostream>
#include <string>

#include "check/rules/loader_rules.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "formats/base/fault_lines.h"
#include "formats/json/json.h"

namespace ingot::cli {

Answer& answer() {
  return session().answer;
}

void print_answer() {
  static bool is_printed = false;
  if (!answer().is_json || answer().is_of_other || is_printed) return;
  // An error in between, memory that is not there, is answered with another document.
  const std::string text = formats::json_text(answer().document());
  is_printed = true;
  write_data(text);
  std::cout << std::flush;
}

void warn_of(std::string_view file, const std::vector<std::string>& remarks) {
  answer().add({{"warnings", check::remarks_json(remarks, file)}});
  notes() << remark_lines("warning", remarks);
}

}  // namespace ingot::cli
