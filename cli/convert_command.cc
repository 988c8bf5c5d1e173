#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/convert_report.h"
#include "cli/convert_verify.h"
#include "cli/flag_table.h"
#include "cli/job_option.h"
#include "cli/size_option.h"
#include "cli/slicing_option.h"
#include "convert/convert.h"
#include "convert/job/job_identity.h"
#include "convert/output/output_directory.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/recipe.h"
#include "convert/recipe/statistics.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "shard/join/source.h"

namespace ingot::cli {

using convert::Recipe;
using formats::Checkpoint;

namespace {

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{1} << 20;

// The words as given; validated into a recipe and options when the command runs.
struct Words {
  std::string input, to, recipe_file, family, mtp, explain, max_shard_size;
  std::string dialect, activations, activation_scales, importance, scales_from, fp8_grid;
  std::string nvfp4_search, via, input_scale;
  std::vector<std::string> rules, allow;
  SlicingWords slicing;
  JobWords job;
  ConvertVerifyWords verify;
  bool quantize_attention = false;
};

// Options of the command line win over the recipe's.
void read_choices(const Words& words, Recipe& recipe) {
  convert::Choices& choices = recipe.choices;
  const auto note = [&](const char* option, bool is_given) {
    if (is_given) recipe.given.emplace_back(option);
  };
  note("--dialect", !words.dialect.empty());
  note("--activations", !words.activations.empty());
  note("--activation-scales", !words.activation_scales.empty());
  note("--input-scale", !words.input_scale.empty());
  note("--fp8-grid", !words.fp8_grid.empty());
  note("--scales-from", !words.scales_from.empty());
  note("--nvfp4-search", !words.nvfp4_search.empty());
  note("--importance", !words.importance.empty());
  note("--via", !words.via.empty());
  note("--quantize-attention", words.quantize_attention);
  if (!words.dialect.empty()) choices.dialect = words.dialect;
  if (!words.activations.empty())
    choices.activations = convert::parse_activations(words.activations);
  if (!words.fp8_grid.empty()) choices.fp8_grid = convert::parse_fp8_grid(words.fp8_grid);
  if (!words.nvfp4_search.empty())
    choices.nvfp4_search = convert::parse_nvfp4_search(words.nvfp4_search);
  if (!words.via.empty()) choices.via = convert::parse_via(words.via);
  if (words.quantize_attention) choices.quantize_attention = true;
  if (!words.input_scale.empty())
    choices.input_scale = convert::parse_input_scale(words.input_scale);
  if (choices.input_scale && !words.activation_scales.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--input-scale is one scale for every input, --activation-scales has one for each "
                "(give one of them)");
  }
  if (!words.activation_scales.empty()) {
    choices.activation_scales = std::make_shared<const convert::ActivationScales>(
        convert::ActivationScales::read(words.activation_scales));
  }
  if (!words.importance.empty()) {
    choices.importance =
        std::make_shared<const convert::Importance>(convert::Importance::read(words.importance));
  }
}

// The release whose scales are taken over, and what identifies it in the manifest.
void open_scales_from(const Words& words, std::size_t threads, convert::Choices& choices) {
  if (words.scales_from.empty()) return;
  auto release = std::make_shared<Checkpoint>(shard::open_source(
      words.scales_from, {.open = {.family = words.family, .threads = threads}}));
  choices.scales_from_fingerprint = convert::source_fingerprint(*release, nullptr, {.n = threads});
  choices.scales_from = std::move(release);
}

Recipe make_recipe(const Words& words) {
  Recipe recipe;
  if (!words.recipe_file.empty()) {
    recipe = convert::parse_recipe(read_text_file(words.recipe_file, kMaxRecipeBytes),
                                   words.recipe_file);
  }
  std::vector<convert::Rule> first;
  for (const std::string& text : words.rules) first.push_back(convert::parse_rule(text));
  recipe.rules.insert(recipe.rules.begin(), std::make_move_iterator(first.begin()),
                      std::make_move_iterator(first.end()));
  if (!words.to.empty()) recipe.to = convert::parse_scheme_word(words.to, "--to");
  if (!words.mtp.empty()) recipe.mtp = convert::parse_mtp_policy(words.mtp, "--mtp");
  for (const std::string& text : words.allow) recipe.allow.add(text);
  read_choices(words, recipe);
  return recipe;
}

convert::PlanOptions plan_options(const Words& words) {
  convert::PlanOptions options;
  if (!words.max_shard_size.empty()) {
    options.shards.max_shard_bytes = parse_size(words.max_shard_size, "--max-shard-size");
  }
  read_slicing(words.slicing, options);
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

std::vector<std::string_view> dialect_names() {
  std::vector<std::string_view> names;
  for (const formats::Dialect* dialect : formats::dialects()) names.push_back(dialect->name);
  return names;
}

// The table of contents of the program: read, plan, execute, report.
int run_convert(const Words& words) {
  const std::size_t threads = words.job.n_threads();
  words.verify.require_valid(words.job);
  Recipe recipe = make_recipe(words);
  convert::require_apart(words.input, words.job.output);

  const convert::PlanOptions shard_options = plan_options(words);
  convert::SourceStamps stamps;
  stamps.add(words.input);
  if (!words.scales_from.empty()) stamps.add(words.scales_from, convert::ReadFor::kOption);
  const Checkpoint source = shard::open_source(
      words.input, {.open = {.family = words.family,
                             .allow_unknown = &recipe.allow.unknown_tensor,
                             .consumed_headers =
                                 words.job.resume ? convert::consumed_headers_of(words.job.output)
                                                  : std::filesystem::path(),
                             .threads = threads},
                    .compare_replicas = !words.job.dry_run});
  open_scales_from(words, threads, recipe.choices);
  const convert::Plan plan = convert::plan_conversion(source, std::move(recipe), shard_options);
  if (!words.explain.empty()) {
    std::cout << explain_text(plan, words.explain);
    return kExitDone;
  }
  words.verify.require_possible(source);
  return run_job(words.job, "converting", plan,
                 {.stamps = std::move(stamps),
                  .inspect = inspection_of(words.verify, words.input, words.family, words.job),
                  .gate = words.verify.text(),
                  .no_verify = words.verify.skip});
}

}  // namespace

std::function<int()> declare_convert(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(FlagGroup::kCommon,
            {{"input", &words->input, "directory of the source checkpoint", {.is_required = true}},
             {"output",
              &words->job.output,
              "directory to write; must be absent or empty",
              {.is_required = true}},
             {"--to", &words->to,
              fmt::format("target scheme: {}; which tensors take it: ingot list recipes (default: "
                          "keep each scheme)",
                          target_words())},
             {"--dialect", &words->dialect,
              fmt::format("layout of quantized tensors: {} (default: by scheme); what vLLM and "
                          "SGLang refuse of it: "
                          "ingot list engines",
                          fmt::join(dialect_names(), ", "))}});
  table.add(FlagGroup::kSource,
            {{"--family", &words->family,
              "model family instead of config.json's; generic accepts any names"},
             {"--allow", &words->allow,
              fmt::format("accept a fault, KIND=PATTERN of one or more tensors, KIND one of {}; "
                          "recorded in the manifest",
                          fmt::join(convert::Allowances::kinds(), ", "))}});
  table.add(
      FlagGroup::kTarget,
      {{"--rule", &words->rules,
        "PATTERN=SCHEME for single tensors; may be repeated, first match wins"},
       {"--recipe", &words->recipe_file, "YAML file of rules, after those of --rule"},
       {"--mtp", &words->mtp,
        "MTP layers: convert as any other layer (default), bf16 (default for nvfp4 and mxfp4), "
        "keep (in the source's "
        "scheme), or drop"},
       {"--quantize-attention", &words->quantize_attention,
        "nvfp4, mxfp4: attention projections too"},
       {"--activations", &words->activations,
        "what the engine does with activations: weight-only, dynamic or static (default: by "
        "dialect and scheme)"},
       {"--activation-scales", &words->activation_scales,
        "safetensors file with MODULE.input_amax, or .input_min and .input_max, for static "
        "activations: what ingot "
        "calibrate writes"},
       {"--input-scale", &words->input_scale,
        "one scale for every static input instead of a file, e.g. 1"},
       {"--fp8-grid", &words->fp8_grid,
        "FP8 scales: amax, or ue8m0 (powers of two); default: what the source says, else amax"},
       {"--scales-from", &words->scales_from,
        "take the FP8 scales of this release instead of computing them"},
       {"--nvfp4-search", &words->nvfp4_search,
        "NVFP4 block scales: amax, 4over6 or mse (default)"},
       {"--importance", &words->importance,
        "NVFP4: weight the errors of columns by the mean squares in this file, which ingot "
        "calibrate writes"},
       {"--via", &words->via, "values pass through f32 (default), or bf16, as if cast first"},
       {"--max-shard-size", &words->max_shard_size,
        "deal tensors anew to files of at most this size (default: keep the source's files and "
        "their contents)"}});
  table.add(FlagGroup::kReport, {{"--explain", &words->explain,
                                  "print which rule fires for TENSOR and what becomes of it"}});
  declare_slicing(table, words->slicing);
  declare_job(table, words->job);
  declare_convert_verify(table, words->verify);
  table.set_footer(
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
      "  ingot convert IN OUT --to bf16 --resume              continue after a kill");
  return [words] { return run_convert(*words); };
}

}  // namespace ingot::cli
