#include "cli/commands/commands.h"

#include <array>

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

}  // namespace ingot::cli
