#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/flags/flag_table.h"
#include "cli/flags/slicing_flags.h"
#include "cli/report/convert_report.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/job/execute.h"
#include "convert/job/job_identity.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/recipe.h"
#include "convert/recipe/statistics.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
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

  /// As they were given, for the journal; empty without --verify.
  [[nodiscard]] std::string text() const {
    if (levels.empty()) return {};
    std::string text = fmt::format("--verify {}", levels);
    if (!thresholds.empty()) text += fmt::format(" --thresholds {}", thresholds.string());
    for (const std::string& requirement : requirements)
      text += fmt::format(" --require '{}'", requirement);
    return text;
  }
  /// Throws for values that are not understood, or flags that go with no verification.
  void require_valid(const JobFlags& job) const {
    if (job.execute.no_verify && !job.execute.resume)
      throw Error(ErrorCode::kInvalidArgument, "--no-verify goes with --resume");
    if (levels.empty()) {
      if (thresholds.empty() && requirements.empty()) return;
      throw Error(ErrorCode::kInvalidArgument, "--thresholds and --require go with --verify");
    }
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
      if (level == verify::Level::kLayers || level == verify::Level::kGreedy)
        (void)inference::model_spec(source.family(), source.config());
    }
  }
};

void declare_convert_verify(FlagTable& table, ConvertVerifyFlags& flags, bool& no_verify) {
  table.add(FlagGroup::kComparison,
            {{"--verify", &flags.levels,
              fmt::format("compare with the source before anything is "
                          "published: {}, or all; below a gate nothing is "
                          "published, and the exit code is 1",
                          names_of(verify::levels(), &verify::LevelFacts::name))},
             {"--no-verify",
              &no_verify,
              "with --resume: publish without the verification that the "
              "conversion was begun with (recorded in the "
              "manifest)",
              {.excludes = {"--verify"}}}});
  declare_gates(table, flags.thresholds, flags.requirements);
}

/// Compares what was made with `input`, what it was made of, before anything is published, and
/// prints the report on stderr; null when that was not asked for. The flags must outlive it.
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
    std::cerr << verify::report_text(report, job.n_worst);
    return convert::Inspection{.may_publish = report.passed(),
                               .report = formats::json_text(verify::report_json(report))};
  };
}

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{1} << 20;

// The flags as given; validated into a recipe and options when the command runs.
struct ConvertFlags {
  std::string input, to, recipe_file, family, mtp, explain, max_shard_size;
  std::string dialect, activations, activation_scales, importance, scales_from, fp8_grid;
  std::string search, nvfp4_search, group_size, via, input_scale;
  std::vector<std::string> rules, allow;
  SlicingFlags slicing;
  JobFlags job;
  ConvertVerifyFlags verify;
  bool quantize_attention = false;
};

// Options of the command line win over the recipe's.
void read_choices(const ConvertFlags& flags, Recipe& recipe) {
  convert::Choices& choices = recipe.choices;
  const auto is_given = [&](const char* option, const auto& value) {
    if (value == std::decay_t<decltype(value)>()) return false;
    recipe.given.emplace_back(option);
    return true;
  };
  if (is_given("--dialect", flags.dialect)) choices.dialect = flags.dialect;
  if (is_given("--activations", flags.activations))
    choices.activations = convert::parse_activations(flags.activations);
  const bool has_scales = is_given("--activation-scales", flags.activation_scales);
  if (is_given("--input-scale", flags.input_scale))
    choices.input_scale = convert::parse_input_scale(flags.input_scale);
  if (choices.input_scale && has_scales) {
    throw Error(ErrorCode::kInvalidArgument,
                "--input-scale is one scale for every input, --activation-scales has one for each "
                "(give one of them)");
  }
  if (has_scales) {
    choices.activation_scales = std::make_shared<const convert::ActivationScales>(
        convert::ActivationScales::read(flags.activation_scales));
  }
  if (is_given("--fp8-grid", flags.fp8_grid))
    choices.fp8_grid = convert::parse_fp8_grid(flags.fp8_grid);
  is_given("--scales-from", flags.scales_from);
  if (!flags.search.empty() && !flags.nvfp4_search.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--nvfp4-search is --search by its former name (give one of them)");
  }
  for (const auto& [option, word] :
       {std::pair{"--search", &flags.search}, {"--nvfp4-search", &flags.nvfp4_search}}) {
    if (is_given(option, *word)) choices.search = convert::parse_scale_search(*word, option);
  }
  if (is_given("--group-size", flags.group_size))
    choices.group_size = convert::parse_group_size(flags.group_size);
  if (is_given("--importance", flags.importance)) {
    choices.importance =
        std::make_shared<const convert::Importance>(convert::Importance::read(flags.importance));
  }
  if (is_given("--via", flags.via)) choices.via = convert::parse_via(flags.via);
  if (is_given("--quantize-attention", flags.quantize_attention)) choices.quantize_attention = true;
}

// The release whose scales are taken over, and what identifies it in the manifest.
void open_scales_from(const ConvertFlags& flags, std::size_t threads, convert::Choices& choices) {
  if (flags.scales_from.empty()) return;
  auto release = std::make_shared<Checkpoint>(shard::open_source(
      flags.scales_from, {.open = {.family = flags.family, .threads = threads}}));
  choices.scales_from_fingerprint = convert::source_fingerprint(*release, nullptr, {.n = threads});
  choices.scales_from = std::move(release);
}

Recipe make_recipe(const ConvertFlags& flags) {
  Recipe recipe;
  if (!flags.recipe_file.empty()) {
    recipe = convert::parse_recipe(read_text_file(flags.recipe_file, kMaxRecipeBytes),
                                   flags.recipe_file);
  }
  std::vector<convert::Rule> first;
  for (const std::string& text : flags.rules) first.push_back(convert::parse_rule(text));
  recipe.rules.insert(recipe.rules.begin(), std::make_move_iterator(first.begin()),
                      std::make_move_iterator(first.end()));
  if (!flags.to.empty()) recipe.to = convert::parse_scheme_word(flags.to, "--to");
  if (!flags.mtp.empty()) recipe.mtp = convert::parse_mtp_policy(flags.mtp, "--mtp");
  for (const std::string& text : flags.allow) recipe.allow.add(text);
  read_choices(flags, recipe);
  return recipe;
}

convert::PlanOptions plan_options(const ConvertFlags& flags) {
  convert::PlanOptions options;
  if (!flags.max_shard_size.empty()) {
    options.shards.max_shard_bytes = parse_size(flags.max_shard_size, "--max-shard-size");
  }
  read_slicing(flags.slicing, options);
  return options;
}

// Names, and the short words for some of them.
std::string target_words() {
  std::vector<std::string> words;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.to_word.empty()) continue;
    words.push_back(facts.to_word == facts.name
                        ? std::string(facts.name)
                        : fmt::format("{} (or {})", facts.name, facts.to_word));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// The table of contents of the program: read, plan, execute, report.
int run_convert(ConvertFlags& flags) {
  convert::ExecuteOptions& execute = flags.job.execute;
  const std::size_t threads = threads_of(execute.threads);
  flags.verify.require_valid(flags.job);
  Recipe recipe = make_recipe(flags);
  convert::require_apart(flags.input, flags.job.output);

  const convert::PlanOptions shard_options = plan_options(flags);
  execute.stamps.add(flags.input);
  if (!flags.scales_from.empty()) execute.stamps.add(flags.scales_from, convert::ReadFor::kOption);
  const Checkpoint source = shard::open_source(
      flags.input,
      {.open = {.family = flags.family,
                .allow_unknown = &recipe.allow.unknown_tensor,
                .consumed_headers = execute.resume ? convert::consumed_headers_of(flags.job.output)
                                                   : std::filesystem::path(),
                .threads = threads},
       .compare_replicas = !flags.job.dry_run});
  open_scales_from(flags, threads, recipe.choices);
  const convert::Plan plan = convert::plan_conversion(source, std::move(recipe), shard_options);
  if (!flags.explain.empty()) {
    std::cout << explain_text(plan, flags.explain);
    return kExitDone;
  }
  flags.verify.require_possible(source);
  execute.inspect = inspection_of(flags.verify, flags.input, flags.family, flags.job);
  execute.gate = flags.verify.text();
  return run_job(flags.job, "converting", plan);
}

}  // namespace

std::function<int()> declare_convert(FlagTable& table) {
  auto flags = std::make_shared<ConvertFlags>();
  table.add(FlagGroup::kCommon,
            {required("input", &flags->input, "directory of the source checkpoint"),
             required("output", &flags->job.output, kOutputHelp),
             {"--to", &flags->to,
              fmt::format("target scheme: {}; which tensors take it: ingot list recipes (default: "
                          "keep each scheme)",
                          target_words())},
             {"--dialect", &flags->dialect,
              fmt::format("layout of quantized tensors: {} (default: by scheme); what vLLM and "
                          "SGLang refuse of it: "
                          "ingot list engines",
                          names_of(formats::dialects(), &formats::Dialect::name))}});
  table.add(FlagGroup::kSource,
            {{"--family", &flags->family, kFamilyHelp},
             {"--allow", &flags->allow,
              fmt::format("accept a fault, KIND=PATTERN of one or more tensors, KIND one of {}; "
                          "recorded in the manifest",
                          fmt::join(convert::Allowances::kinds(), ", "))}});
  table.add(
      FlagGroup::kTarget,
      {{"--rule", &flags->rules,
        "PATTERN=SCHEME for single tensors; may be repeated, first match wins"},
       {"--recipe", &flags->recipe_file, "YAML file of rules, after those of --rule"},
       {"--mtp", &flags->mtp,
        "MTP layers: convert as any other layer (default), bf16 (default for nvfp4, mxfp4, int4), "
        "keep (in the source's "
        "scheme), or drop"},
       {"--quantize-attention", &flags->quantize_attention,
        "nvfp4, mxfp4, int4: attention projections too"},
       {"--activations", &flags->activations,
        "what the engine does with activations: weight-only, dynamic or static (default: by "
        "dialect and scheme)"},
       {"--activation-scales", &flags->activation_scales,
        "safetensors file with MODULE.input_amax, or .input_min and .input_max, for static "
        "activations: what ingot "
        "calibrate writes"},
       {"--input-scale", &flags->input_scale,
        "one scale for every static input instead of a file, e.g. 1"},
       {"--fp8-grid", &flags->fp8_grid,
        "FP8 scales: amax, or ue8m0 (powers of two); default: what the source says, else amax"},
       {"--scales-from", &flags->scales_from,
        "take the FP8 block or INT4 scales of this release instead of computing them"},
       {"--search", &flags->search,
        "how block scales are chosen: nvfp4 by amax, 4over6 or mse (default), int4 by amax, mse "
        "(default) or signed (mse, and negative scales too)"},
       {"--nvfp4-search", &flags->nvfp4_search, "the same, by its former name"},
       {"--group-size", &flags->group_size,
        "INT4: columns that share a scale, 32, 64, 128 or row (default: the source's if it is "
        "INT4, else 128)"},
       {"--importance", &flags->importance,
        "NVFP4 and INT4: weight the errors of columns by the mean squares in this file, which "
        "ingot "
        "calibrate writes"},
       {"--via", &flags->via, "values pass through f32 (default), or bf16, as if cast first"},
       {"--max-shard-size", &flags->max_shard_size,
        "deal tensors anew to files of at most this size (default: keep the source's files and "
        "their contents)"}});
  table.add(FlagGroup::kReport, {{"--explain", &flags->explain,
                                  "print which rule fires for TENSOR and what becomes of it"}});
  declare_slicing(table, flags->slicing);
  declare_job(table, flags->job);
  declare_convert_verify(table, flags->verify, flags->job.execute.no_verify);
  table.footer =
      "Examples:\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot convert IN OUT --to bf16 --dry-run\n"
      "  ingot convert IN OUT --to int8                       W8A8 for vLLM, and for SGLang with\n"
      "                                                       --quantization w8a8_int8\n"
      "  ingot convert IN OUT --to int8 --dialect modelslim   W8A8 for vLLM-Ascend\n"
      "  ingot convert IN OUT --to nvfp4 --dialect modelopt --activations static --input-scale 1\n"
      "  ingot convert IN OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert IN OUT --to fp8 --scales-from RELEASE  back to the released grid\n"
      "  ingot convert IN OUT --rule 'model.layers.*.mlp.experts.*=keep' --to bf16\n"
      "  ingot convert IN OUT --max-shard-size 5GB            re-shard, every tensor byte for "
      "byte\n"
      "  ingot convert IN OUT --tp 8 --ep 16                  FP8 as released, cut for 16 ranks\n"
      "  ingot convert IN OUT --to nvfp4 --tp 2 --ep 4        quantize and cut in one pass\n"
      "  ingot convert IN OUT --tp 32 --tp-fit retile --dry-run\n"
      "  ingot convert IN OUT --to bf16 --layout deepseek-mp --mp 8 --mtp drop\n"
      "  ingot convert IN OUT --to nvfp4 --verify structure,weights,layers\n"
      "  ingot convert IN OUT --to bf16 --resume              continue after a kill";
  return [flags] { return run_convert(*flags); };
}

}  // namespace ingot::cli
