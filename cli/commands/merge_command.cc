#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "convert/convert.h"
#include "convert/output/apart.h"
#include "convert/output/output_directory.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/files/hub_cache.h"
#include "library/options/flag_table.h"
#include "library/options/target_flags.h"
#include "shard/join/source.h"

namespace ingot::cli {

namespace {

struct MergeFlags {
  std::string input, config, family;
  FileFlags files;
  JobFlags job;
};

// A conversion that changes only the layout.
int run_merge(MergeFlags& flags) {
  const std::size_t threads = threads_of(flags.job.execute.threads);
  convert::require_apart({.folders = {flags.input}}, flags.job.output);
  formats::require_directory(formats::checkpoint_directory(flags.input));
  if (!shard::is_sliced(flags.input)) {
    throw Error(ErrorCode::kInvalidArgument,
                "holds no slices (give the directory above the rank directories, or that of "
                "model{i}-mp{N}.safetensors)")
        .in_file(flags.input);
  }
  flags.job.execute.stamps.add(flags.input);
  convert::Recipe recipe;
  convert::allow_as_recorded(formats::checkpoint_directory(flags.input), recipe.allow);
  const formats::Checkpoint source =
      shard::open_source(flags.input, {.open = {.family = flags.family,
                                                .allow_unknown = &recipe.allow.unknown_tensor,
                                                .threads = threads},
                                       .compare_replicas = !flags.job.dry_run,
                                       .config = flags.config});
  convert::PlanOptions options;
  options.shards = file_policy(flags.files);
  const convert::Plan plan = convert::plan_conversion(source, std::move(recipe), options);
  return run_job(flags.job, "merging", plan);
}

}  // namespace

std::function<int()> declare_merge(FlagTable& table) {
  auto flags = std::make_shared<MergeFlags>();
  table.add(FlagGroup::kCommon,
            {required("input", &flags->input,
                      "directory of rank directories, or of model{i}-mp{N}.safetensors",
                      ValueKind::kCheckpoint),
             required_output("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  table.add(FlagGroup::kSource,
            {{"--config", &flags->config, kConfigHelp, {.kind = ValueKind::kFile}},
             family_flag(&flags->family, "model family instead of config.json's"),
             family_file_flag(&flags->family)});
  declare_files(table, flags->files, "the files that the unsliced checkpoint had, else 5GB");
  declare_job(table, flags->job);
  table.footer =
      "Examples:\n"
      "  ingot merge DeepSeek-V3.2-tp8-ep16 DeepSeek-V3.2\n"
      "  ingot merge SHARDS OUT --config DeepSeek-V3/config.json    from DeepSeek's convert.py";
  return [flags] { return run_merge(*flags); };
}

}  // namespace ingot::cli
