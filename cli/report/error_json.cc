#include "cli/report/error_json.h"

#include <string>

#include "formats/base/fault_lines.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"

namespace ingot::cli {

// A name as it is, unless JSON cannot hold it.
std::string json_name(const std::string& name) {
  return is_utf8(name) ? name : printable(name);
}

formats::Json error_json(const Error& error) {
  formats::Json fault = {{"code", std::string(error_code_name(error.code()))},
                         {"text", error.what()}};
  if (!error.file().empty()) fault["file"] = json_name(error.file());
  if (!error.tensor().empty()) fault["tensor"] = json_name(error.tensor());
  fault["message"] = error.message();
  if (const auto* list = dynamic_cast<const FaultList*>(&error)) {
    for (const Error& one : list->faults()) fault["faults"].push_back(error_json(one));
  }
  return fault;
}

}  // namespace ingot::cli
