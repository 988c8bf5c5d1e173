#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/job/part_journals.h"
#include "convert/output/output_directory.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "library/conversion.h"
#include "library/options/flag_table.h"
#include "library/options/job_options.h"
#include "library/options/settings.h"

namespace ingot::cli {

namespace {

struct JoinFlags {
  std::string output, progress = "auto", log_file;
  std::size_t threads = 0;
  bool dry_run = false;
};

// Takes the settings that a part was begun with, and publishes by them.
int run_join(const JoinFlags& flags) {
  const convert::OutputPaths paths(std::filesystem::absolute(flags.output));
  const formats::JsonValue said = convert::settings_of_part(paths);
  if (said.is_null()) {
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
  std::error_code failure;
  if (!std::filesystem::equivalent(formats::text_at(said, "output"), paths.output, failure)) {
    throw Error(ErrorCode::kNotFound,
                "is not where the parts' command has it: here other paths lead to it (give their "
                "whole command with the paths of this host and --part join)")
        .in_file(paths.output.string());
  }
  formats::Json settings = *said;
  settings.update(
      {{"part", library::kJoin},
       {"threads", threads_of(flags.threads)},
       {"progress", flags.progress},
       {"log", flags.log_file.empty() ? formats::Json() : formats::Json(flags.log_file)},
       {"json", answer().is_json},
       {"dry-run", flags.dry_run},
       {"mpi", nullptr},
       {"resume", nullptr},
       {"no-verify", nullptr},
       {"quiet", nullptr}});
  // A recipe of several sources names them.
  const bool is_pruning = !formats::json_member(settings, "keep").is_null() ||
                          !formats::json_member(settings, "keep-map").is_null();
  const std::string_view command = !said->contains("input") ? "compose"
                                   : is_pruning             ? "prune"
                                                            : "convert";
  answer().command = command;
  const DeclaredCommand declared = declare_command(*find_command(command));
  take_settings(settings, *declared.table);
  return declared.run();
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
