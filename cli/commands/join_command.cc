#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/job/part_journals.h"
#include "convert/output/output_directory.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "library/options/flag_table.h"
#include "library/options/job_options.h"

namespace ingot::cli {

namespace {

struct JoinFlags {
  std::string output, progress = "auto", log_file;
  std::size_t threads = 0;
  bool dry_run = false;
};

// Options of the parts' command that this one says itself.
constexpr std::array kOwnOptions = {OwnOption{"--part"},          OwnOption{"--mpi"},
                                    OwnOption{"--threads"},       OwnOption{"--progress"},
                                    OwnOption{"--log"},           OwnOption{"--json", false},
                                    OwnOption{"--resume", false}, OwnOption{"--no-verify", false},
                                    OwnOption{"--quiet", false},  OwnOption{"-q", false}};

// Whether a command, said in the current directory, names this folder.
bool names(const std::vector<std::string>& words, const std::filesystem::path& folder) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    std::error_code failure;
    return std::filesystem::equivalent(word, folder, failure) && !failure;
  });
}

// Makes the plan again by the words that a part was begun with, and becomes that command.
int run_join(const JoinFlags& flags) {
  const convert::OutputPaths paths(std::filesystem::absolute(flags.output));
  const convert::CommandLine line = convert::command_of_part(paths);
  if (line.words.empty()) {
    if (convert::output_state(paths.output) == convert::OutputState::kFinished) {
      if (!flags.dry_run) convert::remove_leftovers(paths.output, execution({}).run);
      answer().add({{"already_done", true}, {"published", true}});
      notes() << "already finished: there is nothing to join\n";
      return kExitDone;
    }
    throw Error(ErrorCode::kNotFound,
                "holds no parts to join (convert with --part I/N first; a conversion without parts "
                "is continued with --resume)")
        .in_file(paths.output.string());
  }
  if (line.words.size() < 2 || line.words[1] != "convert") {
    throw Error(ErrorCode::kCorrupt, "its journal does not record an ingot convert command")
        .in_file(paths.output.string());
  }
  const std::string log_file =
      flags.log_file.empty() ? "" : std::filesystem::absolute(flags.log_file).string();
  std::error_code failure;
  std::filesystem::current_path(line.directory, failure);
  if (failure) {
    throw Error(ErrorCode::kNotFound,
                "the parts were begun in {}, which is not here: {} (give their whole command with "
                "--part join)",
                line.directory, failure.message())
        .in_file(paths.output.string());
  }
  std::vector<std::string> words = words_without(line.words, kOwnOptions);
  if (!names(words, paths.output)) {
    throw Error(ErrorCode::kNotFound,
                "is not where the parts' command has it: here other paths lead to it (give their "
                "whole command with the paths of this host and --part join)")
        .in_file(paths.output.string());
  }
  std::vector<std::string> own = {"--part",     "join",
                                  "--threads",  std::to_string(threads_of(flags.threads)),
                                  "--progress", flags.progress};
  if (!log_file.empty()) own.insert(own.end(), {"--log", log_file});
  if (answer().is_json) own.emplace_back("--json");
  if (flags.dry_run) own.emplace_back("--dry-run");
  become("convert", std::move(words), own);
}

}  // namespace

std::function<int()> declare_join(FlagTable& table) {
  auto flags = std::make_shared<JoinFlags>();
  table.add(FlagGroup::kCommon,
            {required_output("output", &flags->output,
                             "directory that the parts have written (ingot convert --part I/N)",
                             ValueKind::kFolder),
             {"--dry-run", &flags->dry_run, "refuse what would be refused, and publish nothing"}});
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {{"--log",
                                  &flags->log_file,
                                  "append a line per event to this file",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 progress_flag(&flags->progress),
                                 json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot convert IN OUT --to bf16 --part 0/2            on one host\n"
      "  ingot convert IN OUT --to bf16 --part 1/2            on another\n"
      "  ingot join OUT                                       when both have ended";
  return [flags] { return run_join(*flags); };
}

}  // namespace ingot::cli
