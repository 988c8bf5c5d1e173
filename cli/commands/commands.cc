#include "cli/commands/commands.h"

#include <algorithm>
#include <array>

#include "cli/terminal/session.h"
#include "formats/base/fault_lines.h"
#include "formats/base/printable.h"
#include "library/options/flag_table.h"

namespace ingot::cli {
namespace {

constexpr std::array kAllCommands = {
    Command{.name = "inspect",
            .summary = "show parameters, dtypes, schemes, layers and files of a checkpoint",
            .declare = declare_inspect,
            .main_options = "--tensors --gpu --count --gpu-memory --to --tp --ep --kv-cache "
                            "--context --json"},
    Command{
        .name = "check",
        .summary = "find everything wrong with a checkpoint, all at once",
        .declare = declare_check,
        .main_options = "--engine --tp --deep --no-hashes --source-of --family --threads --json"},
    Command{.name = "calibrate",
            .summary = "measure the inputs of a model's linear layers while it reads a text",
            .declare = declare_calibrate,
            .main_options = "--text --out --max-tokens --mem-limit --threads --progress"},
    Command{.name = "balance",
            .summary = "share experts out to ranks by the tokens that a text gives them",
            .declare = declare_balance,
            .main_options = "--text --loads --ep --slots --nodes --out --max-tokens --mem-limit "
                            "--html --json"},
    Command{.name = "convert",
            .summary = "make the checkpoint to deploy from the checkpoint as released",
            .declare = declare_convert,
            .main_options = "--to --for --rule --recipe --dry-run --resume --tp --ep --verify "
                            "--mem-limit",
            .continued_by = "--resume"},
    Command{.name = "compose",
            .summary = "make one checkpoint of the tensors of several, by a recipe",
            .declare = declare_compose,
            .main_options = "--source --for --dialect --dry-run --resume --tp --ep --verify "
                            "--mem-limit",
            .continued_by = "--resume"},
    Command{.name = "prune",
            .summary = "make a model with fewer experts, every byte of the others as it was",
            .declare = declare_prune,
            .main_options = "--keep --by --statistics --keep-map --dry-run --resume --to --verify "
                            "--mem-limit",
            .continued_by = "--resume"},
    Command{.name = "join",
            .summary = "publish a conversion whose parts ran on many hosts",
            .declare = declare_join,
            .continued_by = ""},
    Command{.name = "merge",
            .summary = "put the slices of ranks together again, bit for bit",
            .declare = declare_merge,
            .main_options = "--dry-run --resume --force --max-shard-size --mem-limit --threads "
                            "--progress --json",
            .continued_by = "--resume"},
    Command{.name = "repair",
            .summary = "correct the JSON about a checkpoint's weights, and scales of fused weights",
            .declare = declare_repair,
            .main_options = "--dry-run --resume --force --allow --dialect --links --mem-limit "
                            "--threads --progress --json",
            .continued_by = "--resume"},
    Command{.name = "delta",
            .summary = "make, check and apply new versions of a checkpoint as differences",
            .declare = declare_delta,
            .main_options = "--out --encoding --checksum --in-place --threads --json",
            .continued_by = ""},
    Command{.name = "verify",
            .summary = "tell whether a checkpoint is still the same model, and may ship",
            .declare = declare_verify,
            .main_options = "--levels --require --thresholds --prompts --text --sample --mem-limit "
                            "--worst --html --json"},
    Command{.name = "compare",
            .summary = "tell which of two outputs is closer to their source, where, by how much",
            .declare = declare_compare,
            .main_options = "--reference --levels --prompts --text --sample --mem-limit --worst "
                            "--html --json"},
    Command{.name = "attest",
            .summary = "sign what an output was made from and how, or check such a statement",
            .declare = declare_attest,
            .main_options = "--key --verify --form --source --with --bundle --threads --json"},
    Command{
        .name = "rederive",
        .summary = "make tensors of an output again from its source, and compare their bytes",
        .declare = declare_rederive,
        .main_options = "--source --sample --all --seed --with --key --bundle --threads --json"},
    Command{.name = "generate",
            .summary = "answer prompts with exactly the files to be deployed",
            .declare = declare_generate,
            .main_options = "--prompt --interactive --prompts --system --greedy --temperature "
                            "--max-new-tokens --profile --mem-limit --ranks"},
    Command{.name = "family",
            .summary = "write the family file of a model that ingot does not know, and prove it",
            .declare = declare_family},
    Command{.name = "synth",
            .summary = "write a valid random checkpoint, the same for the same seed",
            .declare = declare_synth,
            .main_options = "--family --config --like --seed --layers --experts --scheme --shards "
                            "--threads"},
    Command{.name = "list",
            .summary =
                "list schemes, dialects, families, layouts, recipes, roles, forms that engines "
                "load or refuse, metrics, rules, or GPUs",
            .declare = declare_list},
    Command{.name = "help",
            .summary = "show the options of a command, or a page of the manual",
            .declare = declare_help},
    Command{.name = "completions",
            .summary = "print completions of commands, options and values for bash, zsh or fish",
            .declare = declare_completions},
};

}  // namespace

std::span<const Command> commands() {
  return kAllCommands;
}

AllCommands::AllCommands() {
  for (const Command& command : kAllCommands) {
    declared_.push_back(declare_command(command));
    words_.push_back({.name = std::string(command.name),
                      .summary = std::string(command.summary),
                      .table = declared_.back().table.get()});
  }
}

const char* const kProgramSummary =
    "ingot turns a checkpoint of a mixture-of-experts model as released into the checkpoint as "
    "deployed.";
const char* const kProgramFooter =
    "Examples:\n"
    "  ingot inspect DeepSeek-V3.2\n"
    "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16 --dry-run\n"
    "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
    "  ingot check DeepSeek-V3.2-bf16\n"
    "  ingot help COMMAND                                   the options of a command, with more "
    "examples\n"
    "  ingot help                                           commands, and topics to read about\n"
    "Exit codes: 0 done, 1 verification below its threshold, 2 anything else; stopped by Ctrl-C "
    "130, by SIGTERM 143.";

const Command* find_command(std::string_view name) {
  const auto found = std::find_if(kAllCommands.begin(), kAllCommands.end(),
                                  [&](const Command& command) { return command.name == name; });
  return found == kAllCommands.end() ? nullptr : &*found;
}

DeclaredCommand declare_command(const Command& command) {
  const auto table = std::make_shared<FlagTable>();
  const auto quiet = std::make_shared<bool>(false);
  table->command = command.name;
  std::function<int()> action = command.declare(*table);
  table->add(FlagGroup::kReport, {{"--quiet",
                                   quiet.get(),
                                   "print only the result and errors",
                                   {.letter = "-q", .is_for_people = true}}});
  // The table lives as long as the function: commands ask it which flags were given.
  return {table, [table, quiet, action = std::move(action)] {
            if (*quiet) session().is_quiet = true;
            return action();
          }};
}

}  // namespace ingot::cli
