#include <filesystem>
#include <memory>
#include <ostream>
#include <string>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/commands/launch.h"
#include "cli/commands/measurement.h"
#include "cli/report/convert_report.h"
#include "cli/report/explain_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "convert/output/model_card.h"
#include "convert/output/version.h"
#include "delta/make.h"
#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "library/answer.h"
#include "library/conversion.h"
#include "library/options/flag_table.h"
#include "library/options/target_flags.h"
#include "report/figures.h"
#include "verify/outputs/draft_check.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

// The flags as given; validated into a recipe and options when the command runs.
struct ConvertFlags : library::ConvertOptions {
  std::string explain, mpi = "auto", delta;
  JobFlags job;
};

// The difference to the base, as the next version of a stream: only tensors with other hashes are
// read.
void write_delta(const ConvertFlags& flags) {
  const std::filesystem::path& base = flags.job.execute.base.output;
  const StopScope stop = stop_at_signals("the delta was made (ingot delta make makes it)");
  const delta::MadeDelta made = delta::make_delta(base, flags.job.output, flags.delta,
                                                  {.threads = threads_of(flags.job.execute.threads),
                                                   .by_records = true,
                                                   .is_again = flags.job.execute.resume});
  answer().add({{"delta", made.directory.string()}, {"delta_bytes", made.n_payload}});
  if (!answer().is_json) {
    out() << fmt::format("{}: version {}, {} of {} tensors changed, {}{}\n",
                         made.directory.string(), made.version, count_text(made.n_changed),
                         count_text(made.n_tensors), bytes_text(made.n_payload),
                         made.was_there ? " (made by an earlier run)" : "");
  }
}

// True if a measurement next to the whole model was asked for, which is refused for a model without
// a forward pass.
bool asks_to_measure(const ConvertFlags& flags) {
  return flags.prune.measure.value_or(false) || !flags.prune.text.empty();
}

// Throws for a measurement that would not be made.
void require_measurable(const ConvertFlags& flags, const formats::Checkpoint& source) {
  if (!asks_to_measure(flags)) return;
  const auto refuse = [](std::string_view why) {
    throw Error(ErrorCode::kInvalidArgument,
                "{}: leave out --text and --measure (ingot verify DIR OUT --levels layers,draft "
                "--text FILE measures a finished output)",
                why);
  };
  if (!flags.prune.measure.value_or(true)) refuse("--no-measure leaves the measurement out");
  if (!flags.part.empty() && flags.part != library::kJoin)
    refuse("one part of a job cannot be measured");
  (void)inference::model_spec(source.family(), source.config());
}

// Runs a pruned output next to the whole model, and says what it lost.
void measure_pruned(const ConvertFlags& flags, const formats::Checkpoint& source) {
  (void)inference::model_spec(source.family(), source.config());
  verify::VerificationOptions options{.levels = {verify::Level::kLayers},
                                      .family = flags.named_family(),
                                      .text = flags.prune.text,
                                      .threads = threads_of(flags.job.execute.threads),
                                      .mem_limit = memory_budget(flags.job.mem_limit),
                                      .tool_version = std::string(convert::kVersion)};
  if (verify::has_mtp_layer(source) && flags.target.options.at("--mtp") != "drop")
    options.levels.push_back(verify::Level::kDraft);
  Progress progress(flags.job.progress, "measuring");
  options.progress = stages_of(progress);
  const StopScope stop = stop_at_signals("the output was finished, and is being measured");
  const verify::Report report = verify::verify_pair(flags.input, flags.job.output, options);
  progress.finish();
  if (answer().is_json) {
    Answer document;
    document.command = "verify";
    document.add(verify::report_json(report));
    answer().add({{"measured", document.document()}});
  } else {
    out() << "\n" << verify::report_text(report, flags.job.n_worst, report_width());
  }
}

// Measures where it was asked for, and else where it can be done and the models fit in memory.
void measure_if_possible(const ConvertFlags& flags, const formats::Checkpoint& source) {
  const bool is_asked = asks_to_measure(flags);
  std::uint64_t n_bytes = 0;
  for (const formats::SourceFile& file : source.files()) n_bytes += file.n_bytes;
  std::string why = "its weights are larger than --mem-limit (--measure)";
  try {
    if (is_asked || n_bytes <= memory_budget(flags.job.mem_limit))
      return measure_pruned(flags, source);
  } catch (const Error& error) {
    if (is_asked || error.code() == ErrorCode::kInterrupted) throw;
    why = error.what();
  }
  notes() << fmt::format("not measured next to the whole model: {}\n", why);
}

// The table of contents of the program: read, plan, execute, report.
int run_convert(ConvertFlags& flags) {
  if (!flags.delta.empty() && !flags.part.empty() && flags.part != library::kJoin)
    throw Error(ErrorCode::kInvalidArgument,
                "--delta is of the whole output: give it with --part join, or make it when the "
                "output is there (ingot delta make)");
  flags.job.execute.given = session().given;
  library::ConversionRequest request = library::read_conversion(flags, flags.job);
  if (!request.earlier_gates.is_null() && !flags.job.is_of_launch)
    notes() << fmt::format("note: with the gates that it was begun with: {}\n",
                           convert::typed(request.earlier_gates));
  if (is_done_without_source(flags.job, {flags.input, flags.named_family()}, request.recipe,
                             request.plan)) {
    if (!flags.delta.empty()) write_delta(flags);
    return kExitDone;
  }
  const library::Conversion conversion =
      library::plan_conversion(flags, flags.job, std::move(request), !flags.job.dry_run);
  const formats::Checkpoint& source =
      conversion.meaning != nullptr ? *conversion.meaning : *conversion.source;
  if (flags.prune.is_asked) require_measurable(flags, source);
  if (conversion.budget) {
    answer().add({{"budget", conversion.budget->to_json()}});
    if (!answer().is_json && !flags.job.is_of_launch)
      (flags.job.dry_run ? out() : notes()) << conversion.budget->recipe << '\n';
  }
  if (!flags.explain.empty()) {
    const formats::Json explained = explain_json(conversion.plan, flags.explain);
    answer().add({{"explained", explained}});
    if (!answer().is_json) out() << explain_text(explained);
    return kExitDone;
  }
  library::add_gate(
      flags, flags.job, conversion.plan, [&](const verify::Report& report, formats::Json document) {
        (report.passed() ? notes() : errors())
            << verify::report_text(report, flags.job.n_worst, report_width());
        answer().add({{"passed", report.passed()}, {"verification", std::move(document)}});
        if (!report.passed()) {
          session().refusal = Error(ErrorCode::kMismatch,
                                    "the output does not pass its verification, and this run "
                                    "publishes nothing: {}",
                                    verify::verdict_sentence(report))
                                  .in_file(flags.job.output);
        }
      });
  const std::string_view verb = flags.composes         ? "composing"
                                : flags.prune.is_asked ? "pruning"
                                                       : "converting";
  const int code = run_job(flags.job, verb, conversion.plan);
  if (code == kExitDone && !flags.delta.empty() && !flags.job.dry_run) write_delta(flags);
  const bool may_measure = flags.prune.is_asked && flags.prune.measure.value_or(true) &&
                           !flags.job.dry_run && !flags.job.is_of_launch &&
                           (flags.part.empty() || flags.part == library::kJoin);
  if (code == kExitDone && may_measure) measure_if_possible(flags, source);
  return code;
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
    own.delta.clear();  // written behind the join
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
    if (!is_shown) all.part = library::kJoin;
    code = run_convert(all);
  }
  return code;
}

// Writes the scales of a cache for a model whose weights stay where they are.
int run_overlay(const ConvertFlags& flags) {
  const convert::CacheOverlay overlay =
      library::write_kv_overlay(flags, flags.job, flags.job.dry_run);
  formats::Json files = formats::Json::array();
  std::string text = fmt::format("{} scales of the key-value cache\n", overlay.n_scales);
  for (const auto& [name, contents] : overlay.files) {
    files.push_back({{"name", name}, {"n_bytes", contents.size()}});
    text += fmt::format("  {:>10}  {}\n", contents.size(), name);
  }
  for (const std::string& warning : overlay.warnings)
    notes() << fmt::format("warning: {}\n", warning);
  answer().add({{"overlay",
                 {{"scales", overlay.n_scales},
                  {"files", std::move(files)},
                  {"warnings", overlay.warnings}}}});
  if (!answer().is_json)
    out() << text
          << fmt::format("{}: put these files into the folder of the model\n",
                         flags.job.dry_run ? "not written" : flags.job.output);
  return kExitDone;
}

// Converts in this process only, or together with the other processes of its launch.
int run_parts(ConvertFlags& flags) {
  if (flags.kv_scales_only) return run_overlay(flags);
  if (!flags.part.empty()) return run_convert(flags);
  return run_launched(
      flags.mpi, *flags.job.table, [&] { return run_convert(flags); },
      [&](Ranks& ranks) { return run_on(ranks, flags); });
}

// Declares all flags but those of the source.
void declare_job_of(FlagTable& table, ConvertFlags& flags) {
  library::declare_target(table, flags);
  table.add(FlagGroup::kReport, {{"--explain", &flags.explain,
                                  "print the rule that applies to TENSOR, and the result"}});
  library::declare_rest(table, flags, flags.job);
  table.add(
      FlagGroup::kJob,
      {mpi_flag(&flags.mpi,
                "a part for each process that mpirun, or srun with PMIx, has started, and the join "
                "by the first of them",
                {"--part"})});
  declare_job(table, flags.job);
  table.add(FlagGroup::kTarget,
            {{"--delta",
              &flags.delta,
              "stream that gets the difference to --base as its next version (ingot delta make)",
              {.needs = "--base", .kind = ValueKind::kFolder, .is_written = true}}});
}

}  // namespace

std::function<int()> declare_compose(FlagTable& table) {
  auto flags = std::make_shared<ConvertFlags>();
  flags->composes = true;
  table.add(FlagGroup::kCommon,
            {required("recipe", &flags->target.recipe_file,
                      "YAML file that names the directories, and whose tensors are taken",
                      ValueKind::kFile),
             required_output("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  declare_job_of(table, *flags);
  table.footer =
      "Examples:\n"
      "  ingot compose recipe.yaml OUT --dry-run             whose tensors, and the dialect\n"
      "  ingot compose recipe.yaml OUT --verify structure,weights\n"
      "  ingot compose recipe.yaml OUT --source own=DIR      another directory than the recipe's\n"
      "  ingot verify recipe.yaml OUT                        each tensor with its own source\n"
      "A recipe, with paths relative to its own folder:\n"
      "  base: vendor-nvfp4\n"
      "  sources: {own: ../own-fp8, mtp: ../other-build}\n"
      "  rules:\n"
      "    - {match: \"role:attention\", from: own}\n"
      "    - {match: \"layers:mtp\", from: mtp, scheme: bf16}";
  return [flags] { return run_parts(*flags); };
}

namespace {

std::function<int()> declare_conversion(FlagTable& table, bool is_pruning) {
  auto flags = std::make_shared<ConvertFlags>();
  table.add(FlagGroup::kCommon,
            {required("input", &flags->input, "directory of the source checkpoint",
                      ValueKind::kCheckpoint),
             required_output("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  if (is_pruning) library::declare_pruning(table, *flags);
  declare_job_of(table, *flags);
  return [flags] { return run_parts(*flags); };
}

}  // namespace

std::function<int()> declare_convert(FlagTable& table) {
  std::function<int()> run = declare_conversion(table, false);
  table.footer =
      "Examples:\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot convert IN OUT --to bf16 --dry-run\n"
      "  ingot convert NEW OUT-2 --to nvfp4 --base OUT-1      only tensors that changed are "
      "encoded\n"
      "  ingot convert IN OUT --to int8                       W8A8 for vLLM and SGLang\n"
      "  ingot convert IN OUT --to int8 --for vllm-ascend     W8A8 in the dialect of Ascend\n"
      "  ingot convert IN OUT --to nvfp4 --dialect modelopt --activations static --input-scale 1\n"
      "  ingot convert IN OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert IN OUT --bits 4.8 --importance statistics.safetensors\n"
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
      "  ingot convert IN OUT --to bf16 --resume              continue after a kill\n"
      "  ingot convert IN OUT --to nvfp4 --layers 0-3         a small model to try engines with";
  return run;
}

std::function<int()> declare_prune(FlagTable& table) {
  std::function<int()> run = declare_conversion(table, true);
  table.footer =
      "Examples:\n"
      "  ingot calibrate DIR --text text.txt --out stats\n"
      "  ingot prune DIR OUT --keep 0.75 --statistics stats --dry-run\n"
      "  ingot prune DIR OUT --keep 0.75 --statistics stats\n"
      "  ingot prune DIR OUT --keep 96 --by tokens --statistics stats\n"
      "  ingot prune DIR OUT --keep-map kept.json             lists of one's own\n"
      "  ingot prune DIR OUT --keep 0.5 --statistics stats --to nvfp4\n"
      "  ingot verify DIR OUT                                 each tensor against its old one";
  return run;
}

}  // namespace ingot::cli
