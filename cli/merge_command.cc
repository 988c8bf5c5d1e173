#include <memory>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/job_option.h"
#include "cli/size_option.h"
#include "convert/convert.h"
#include "convert/output/output_directory.h"
#include "shard/join/source.h"

namespace ingot::cli {

using formats::Checkpoint;

namespace {

struct Words {
  std::string input, config, family, max_shard_size;
  JobWords job;
};

// A conversion that changes nothing but the layout.
int run_merge(const Words& words) {
  const std::size_t threads = words.job.n_threads();
  convert::require_apart(words.input, words.job.output);
  if (!shard::is_sliced(words.input)) {
    throw Error(ErrorCode::kInvalidArgument,
                "holds no slices (give the directory above the rank directories, or that of "
                "model{i}-mp{N}.safetensors)")
        .in_file(words.input);
  }
  convert::SourceStamps stamps;
  stamps.add(words.input);
  const Checkpoint source =
      shard::open_source(words.input, {.open = {.family = words.family, .threads = threads},
                                       .compare_replicas = !words.job.dry_run,
                                       .config = words.config});
  convert::PlanOptions options;
  if (!words.max_shard_size.empty())
    options.shards.max_shard_bytes = parse_size(words.max_shard_size, "--max-shard-size");
  const convert::Plan plan = convert::plan_conversion(source, {}, options);
  return run_job(words.job, "merging", plan, {.stamps = std::move(stamps)});
}

}  // namespace

std::function<int()> declare_merge(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(FlagGroup::kCommon, {{"input",
                                  &words->input,
                                  "directory of rank directories, or of model{i}-mp{N}.safetensors",
                                  {.is_required = true}},
                                 {"output",
                                  &words->job.output,
                                  "directory to write; must be absent or empty",
                                  {.is_required = true}}});
  table.add(FlagGroup::kSource,
            {{"--config", &words->config,
              "config.json of the model, for shards that have none beside them"},
             {"--family", &words->family, "model family instead of config.json's"}});
  table.add(FlagGroup::kTarget,
            {{"--max-shard-size", &words->max_shard_size,
              "deal tensors to files of at most this size (default: the files that the unsliced "
              "checkpoint had, else 5GB)"}});
  declare_job(table, words->job);
  table.set_footer(
      "Examples:\n"
      "  ingot merge DeepSeek-V3.2-tp8-ep16 DeepSeek-V3.2\n"
      "  ingot merge SHARDS OUT --config DeepSeek-V3/config.json    from DeepSeek's convert.py");
  return [words] { return run_merge(*words); };
}

}  // namespace ingot::cli
