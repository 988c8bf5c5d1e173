#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/commands/launch.h"
#include "library/options/family_proposal.h"
#include "library/options/flag_table.h"
#include "library/options/slicing_flags.h"
#include "library/options/target_flags.h"
#include "cli/report/explain_report.h"
#include "cli/terminal/answer.h"
#include "cli/report/convert_report.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/expert_form.h"
#include "convert/job/execute.h"
#include "convert/output/apart.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "inference/family/model_family.h"
#include "shard/join/source.h"
#include "verify/verification.h"

namespace ingot::cli {

using convert::Recipe;
using formats::Checkpoint;

namespace {

/// Flags of `convert --verify`.
struct ConvertVerifyFlags {
  std::string levels;  ///< empty: publish without being asked
  std::filesystem::path thresholds;
  std::vector<std::string> requirements;

  /// With --lossless-only the output is compared with the source before it is published: a gate
  /// over every value of both sides.
  void demand_no_loss() {
    const std::vector<verify::Level> asked =
        levels.empty() ? std::vector<verify::Level>() : verify::parse_levels(levels);
    if (std::ranges::find(asked, verify::Level::kWeights) == asked.end())
      levels += levels.empty() ? "weights" : ",weights";
    requirements.emplace_back("weights.relative_error<=0");
  }

  /// As they were given, for the journal; empty without --verify.
  [[nodiscard]] std::string text() const {
    if (levels.empty()) return {};
    std::string text = fmt::format("--verify {}", levels);
    if (!thresholds.empty()) text += fmt::format(" --thresholds {}", thresholds.string());
    for (const std::string& requirement : requirements)
      text += fmt::format(" --require '{}'", requirement);
    return text;
  }
  /// Throws for values that are not understood, and for a source that will not be there.
  void require_valid(const JobFlags& job) const {
    if (levels.empty()) return;
    if (job.execute.consume_source) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--verify compares with the source, which --consume-source deletes");
    }
    verify::parse_levels(levels);
    // A file or a demand that is not understood, too: before hours of work, not after.
    verify::make_thresholds({}, thresholds, requirements);
  }
  /// Throws kUnsupported for levels that run a model which has no forward pass: hours later, when
  /// everything is converted, they could not be run.
  void require_possible(const formats::Checkpoint& source) const {
    if (levels.empty()) return;
    for (const verify::Level level : verify::parse_levels(levels)) {
      if (verify::runs_model(level)) (void)inference::model_spec(source.family(), source.config());
    }
  }
};

void declare_convert_verify(FlagTable& table, ConvertVerifyFlags& flags, JobFlags& job) {
  table.add(FlagGroup::kComparison,
            {{"--verify",
              &flags.levels,
              fmt::format("compare with the source before anything is "
                          "published: {}, or all; below a gate nothing is "
                          "published, and the exit code is 1",
                          names_of(verify::levels(), &verify::LevelFacts::name)),
              {.words = words_of(verify::levels(), &verify::LevelFacts::name)}},
             {"--lossless-only", &job.execute.lossless_only,
              "publish only an output that holds every value of the source exactly; else name the "
              "first tensor that loses one, and exit with 1"},
             {"--no-verify",
              &job.execute.no_verify,
              "with --resume: publish without the verification that the "
              "conversion began with (recorded in the manifest)",
              {.needs = "--resume", .excludes = {"--verify"}}}});
  declare_gates(table, flags.thresholds, flags.requirements, belongs_to("--verify", [&flags, &job] {
                  return !flags.levels.empty() || job.execute.lossless_only;
                }));
}

/// Compares the output with `input`, its source, before anything is published, and prints the
/// report on stderr; null without --verify. The flags must outlive it.
std::function<convert::Inspection(const std::filesystem::path& staged)> inspection_of(
    const ConvertVerifyFlags& flags, const std::string& input, const std::string& family,
    const JobFlags& job) {
  if (flags.levels.empty()) return {};
  return [&](const std::filesystem::path& staged) {
    const verify::VerificationOptions options{
        .levels = verify::parse_levels(flags.levels),
        .family = family,
        .output_name = std::filesystem::absolute(job.output).lexically_normal().filename().string(),
        .thresholds = flags.thresholds,
        .requirements = flags.requirements,
        .threads = threads_of(job.execute.threads),
        .mem_limit = parse_size(job.mem_limit, "--mem-limit"),
        .tool_version = std::string(convert::kVersion),
        .stop_requested = stop_requested};
    const verify::Report report = verify::verify_pair(input, staged, options);
    (report.passed() ? notes() : std::cerr)
        << verify::report_text(report, job.n_worst, report_width());
    Answer record;
    record.add(verify::report_json(report));
    formats::Json document = record.document("verify");
    convert::Inspection inspection{.may_publish = report.passed(),
                                   .report = formats::json_text(document)};
    answer().add({{"passed", report.passed()}, {"verification", std::move(document)}});
    return inspection;
  };
}

// The flags as given; validated into a recipe and options when the command runs.
struct ConvertFlags {
  std::string input, family, explain, max_shard_size, experts, part, mpi = "auto";
  TargetFlags target;
  ProposalFlags proposal;
  SlicingFlags slicing;
  JobFlags job;
  ConvertVerifyFlags verify;
};

// The value of --part that publishes the files of all parts.
constexpr std::string_view kJoin = "join";

convert::PlanOptions plan_options(const ConvertFlags& flags) {
  convert::PlanOptions options;
  if (!flags.max_shard_size.empty()) {
    options.shards.max_shard_bytes = parse_size(flags.max_shard_size, "--max-shard-size");
  }
  read_slicing(flags.slicing, options);
  if (!flags.part.empty() && flags.part != kJoin)
    options.part = convert::parse_job_part(flags.part);
  return options;
}

// The table of contents of the program: read, plan, execute, report.
int run_convert(ConvertFlags& flags) {
  convert::ExecuteOptions& execute = flags.job.execute;
  const std::size_t threads = threads_of(execute.threads);
  if (execute.lossless_only) flags.verify.demand_no_loss();
  flags.verify.require_valid(flags.job);
  Recipe recipe = make_recipe(flags.target);
  if (!flags.experts.empty()) recipe.choices.experts = convert::parse_experts(flags.experts);
  convert::require_apart({.folders = {flags.input}}, flags.job.output);

  const convert::PlanOptions shard_options = plan_options(flags);
  execute.join = flags.part == kJoin;
  execute.resume = execute.resume || execute.join;
  if (is_done_without_source(flags.job, flags.input, recipe, shard_options)) return kExitDone;
  execute.stamps.add(flags.input);
  if (!flags.target.scales_from.empty())
    execute.stamps.add(flags.target.scales_from, convert::ReadFor::kOption);
  const auto open = [&](const std::string& family) {
    return shard::open_source(
        flags.input, {.open = {.family = family,
                               .allow_unknown = &recipe.allow.unknown_tensor,
                               .allow_duplicate = &recipe.allow.duplicate_tensor,
                               .consumed_headers =
                                   execute.resume ? convert::consumed_headers_of(flags.job.output)
                                                  : std::filesystem::path(),
                               .threads = threads},
                      .compare_replicas = !flags.job.dry_run});
  };
  if (flags.family == kAutoFamily)
    flags.family = settle_family(open("generic"), flags.proposal, recipe);
  Checkpoint opened = open(flags.family);
  open_scales_from(flags.target, flags.family, threads, recipe.choices);
  const auto source = convert::with_experts_as_written(
      std::make_shared<const Checkpoint>(std::move(opened)), recipe, shard_options);
  const convert::Plan plan = convert::plan_conversion(*source, std::move(recipe), shard_options);
  if (!flags.explain.empty()) {
    const formats::Json explained = explain_json(plan, flags.explain);
    answer().add({{"explained", explained}});
    if (!answer().is_json) std::cout << explain_text(explained);
    return kExitDone;
  }
  flags.verify.require_possible(*source);
  execute.inspect = inspection_of(flags.verify, flags.input, flags.family, flags.job);
  execute.gate = flags.verify.text();
  return run_job(flags.job, "converting", plan);
}

// A part for each rank and, when all are done, the join by rank 0.
int run_on(Ranks& ranks, const ConvertFlags& flags) {
  const bool is_first = ranks.rank() == 0;
  // Only the first rank prints when no file is written.
  const bool is_shown = flags.job.dry_run || !flags.explain.empty();
  int code = kExitDone;
  if (!is_shown) {
    Progress progress(is_first ? flags.job.progress : "never",
                      fmt::format("converting on {} ranks", ranks.size()));
    if (is_first)
      ranks.show = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
    ConvertFlags own = flags;
    own.part = fmt::format("{}/{}", ranks.rank(), ranks.size());
    own.job.is_of_launch = true;
    own.job.execute.progress = [&](std::uint64_t done, std::uint64_t total) {
      ranks.tell(done, total);
    };
    code = ranks.gather(run_convert(own));
    if (code == kExitBelowThreshold) answer().add({{"passed", false}, {"published", false}});
    ranks.show = {};
    progress.finish();
  } else if (!is_first) {
    code = ranks.gather(kExitDone);
  }
  if (is_first && code == kExitDone) {
    ConvertFlags all = flags;
    if (!is_shown) all.part = kJoin;
    code = run_convert(all);
  }
  return code;
}

// By itself, or with the other processes of its launch.
int run_parts(ConvertFlags& flags) {
  if (!flags.part.empty()) return run_convert(flags);
  return run_launched(
      flags.mpi, [&] { return run_convert(flags); },
      [&](Ranks& ranks) { return run_on(ranks, flags); });
}

}  // namespace

std::function<int()> declare_convert(FlagTable& table) {
  auto flags = std::make_shared<ConvertFlags>();
  table.add(FlagGroup::kCommon,
            {required("input", &flags->input, "directory of the source checkpoint",
                      ValueKind::kCheckpoint),
             required("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  table.add(FlagGroup::kCommon, scheme_flags(flags->target));
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, kAutoFamilyHelp), family_file_flag(&flags->family)});
  table.add(FlagGroup::kSource, proposal_flags(flags->proposal, flags->family));
  table.add(FlagGroup::kSource, {allow_flag(flags->target)});
  table.add(FlagGroup::kTarget, choice_flags(flags->target));
  table.add(
      FlagGroup::kTarget,
      {{"--experts",
        &flags->experts,
        "routed experts: keep, stacked (one tensor for all of a layer), or separate (a tensor "
        "per expert and projection); default: as loaders of the target read them",
        {.words = {"keep", "stacked", "separate"}}},
       {"--max-shard-size",
        &flags->max_shard_size,
        "re-shard into files of at most this size (default: keep the source's files and their "
        "contents)",
        {.kind = ValueKind::kSize}}});
  table.add(FlagGroup::kReport, {{"--explain", &flags->explain,
                                  "print the rule that applies to TENSOR, and the result"}});
  table.add(
      FlagGroup::kJob,
      {{"--part",
        &flags->part,
        "write only the files of part I of N, I from 0; all parts share the output's directory, "
        "and publish nothing; join: publish their output (ingot join)",
        {.words = {std::string(kJoin)}, .value_name = "I/N|join"}},
       mpi_flag(&flags->mpi,
                "a part for each process that mpirun, or srun with PMIx, has started, and the join "
                "by the first of them",
                {"--part"})});
  declare_slicing(table, flags->slicing);
  declare_job(table, flags->job);
  declare_convert_verify(table, flags->verify, flags->job);
  table.footer =
      "Examples:\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot convert IN OUT --to bf16 --dry-run\n"
      "  ingot convert IN OUT --to int8                       W8A8 for vLLM, and for SGLang with\n"
      "                                                       --quantization w8a8_int8\n"
      "  ingot convert IN OUT --to int8 --for vllm-ascend     W8A8 in the dialect of Ascend\n"
      "  ingot convert IN OUT --to nvfp4 --dialect modelopt --activations static --input-scale 1\n"
      "  ingot convert IN OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert IN OUT --to fp8 --scales-from RELEASE  back to the released grid\n"
      "  ingot convert IN OUT --rule role:experts=keep --to bf16\n"
      "  ingot convert IN OUT --rule 'layers:0-2,last & role:linear=bf16' --to int8 --for vllm\n"
      "  ingot convert IN OUT --max-shard-size 5GB            re-shard, every tensor byte for "
      "byte\n"
      "  ingot convert IN OUT --tp 8 --ep 16                  FP8 as released, cut for 16 ranks\n"
      "  ingot convert IN OUT --to nvfp4 --tp 2 --ep 4        quantize and cut in one pass\n"
      "  ingot convert IN OUT --tp 32 --tp-fit retile --dry-run\n"
      "  ingot convert IN OUT --to bf16 --layout deepseek-mp --mp 8 --mtp drop\n"
      "  ingot convert IN OUT --to nvfp4 --verify structure,weights,layers\n"
      "  ingot convert IN OUT --to bf16 --part 0/4            a quarter of the files, on this "
      "host\n"
      "  mpirun -n 4 ingot convert IN OUT --to bf16           four parts, joined when all are "
      "done\n"
      "  ingot convert IN OUT --to bf16 --resume              continue after a kill";
  return [flags] { return run_parts(*flags); };
}

}  // namespace ingot::cli
