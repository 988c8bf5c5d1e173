#include "cli/terminal/answer.h"

#include "check/rules/loader_rules.h"
#include "cli/terminal/terminal.h"
#include "formats/base/fault_lines.h"
#include "formats/json/json.h"

namespace ingot::cli {

Answer& answer() {
  static Answer of_process;
  return of_process;
}

void warn_of(std::string_view file, const std::vector<std::string>& remarks) {
  answer().add({{"warnings", check::remarks_json(remarks, file)}});
  notes() << remark_lines("warning", remarks);
}

}  // namespace ingot::cli
