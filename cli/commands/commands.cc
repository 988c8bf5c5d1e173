#include "cli/commands/commands.h"

#include <array>

#include "formats/base/fault_lines.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

constexpr std::array kCommands = {
    Command{.name = "inspect",
            .summary = "show what a checkpoint holds: parameters, dtypes, schemes, layers, files",
            .declare = declare_inspect},
    Command{.name = "check",
            .summary = "find everything wrong with a checkpoint, all at once",
            .declare = declare_check},
    Command{.name = "calibrate",
            .summary = "measure what goes into the linears of a model while it reads a text",
            .declare = declare_calibrate},
    Command{.name = "convert",
            .summary = "make the checkpoint to deploy from the checkpoint as released",
            .declare = declare_convert,
            .resumes = true},
    Command{.name = "merge",
            .summary = "put the slices of ranks together again, bit for bit",
            .declare = declare_merge,
            .resumes = true},
    Command{.name = "verify",
            .summary = "tell whether a checkpoint is still the same model, and may ship",
            .declare = declare_verify},
    Command{.name = "compare",
            .summary = "tell which of two outputs is closer to their source, where, by how much",
            .declare = declare_compare},
    Command{.name = "generate",
            .summary = "answer prompts with exactly the files to be deployed",
            .declare = declare_generate},
    Command{.name = "synth",
            .summary = "write a valid random checkpoint, the same for the same seed",
            .declare = declare_synth},
    Command{.name = "list",
            .summary =
                "list the schemes, dialects, families, layouts, recipes, what engines refuse, or "
                "metrics",
            .declare = declare_list},
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

std::string json_name(const std::string& name) {
  return is_utf8(name) ? name : printable(name);
}

formats::Json error_json(const Error& error) {
  formats::Json fault = {{"code", error_code_name(error.code())}, {"text", error.what()}};
  if (!error.file().empty()) fault["file"] = json_name(error.file());
  if (!error.tensor().empty()) fault["tensor"] = json_name(error.tensor());
  fault["message"] = error.message();
  if (const auto* list = dynamic_cast<const FaultList*>(&error)) {
    for (const Error& one : list->faults()) fault["faults"].push_back(error_json(one));
  }
  return fault;
}

}  // namespace ingot::cli
