#include "library/options/measurement_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/output/version.h"
#include "convert/recipe/composition.h"
#include "convert/recipe/recipe.h"
#include "formats/adapters/lora.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/edited_tensors.h"
#include "formats/text/spelling.h"
#include "library/options/job_options.h"
#include "library/options/target_flags.h"
#include "verify/gates/gate.h"

namespace ingot {

Flag levels_flag(MeasurementOptions& flags) {
  std::vector<std::string> words = words_of(verify::levels(), &verify::LevelFacts::name);
  words.emplace_back("all");
  return {
      "--levels",
      &flags.levels,
      fmt::format("how closely: {}, or all", names_of(verify::levels(), &verify::LevelFacts::name)),
      {.words = std::move(words)}};
}

void declare_measurement_options(FlagTable& table, MeasurementOptions& flags,
                                 const std::function<bool()>& is_pair) {
  verify::VerificationOptions& options = flags.options;
  // True if one of these levels is run.
  const auto runs = [&flags, is_pair](std::initializer_list<verify::Level> wanted) {
    const std::vector<verify::Level> levels = verify::parse_levels(flags.levels);
    return is_pair() && std::ranges::any_of(levels, [&](verify::Level level) {
             return std::ranges::find(wanted, level) != wanted.end();
           });
  };
  using enum verify::Level;
  table.add(
      FlagGroup::kComparison,
      {{"--prompts",
        &options.prompts,
        "texts for layers, greedy and draft, separated by blank lines, or JSON lines (.jsonl) "
        "(default: built in); - is stdin",
        {.kind = ValueKind::kFile,
         .takes_stdin = true,
         .idle = belongs_to(
             "--levels layers and greedy, and draft without --text",
             [runs, &options] {
               return runs({kLayers, kGreedy}) || (runs({kDraft}) && options.text.empty());
             })}},
       {"--tokens",
        &options.greedy_tokens,
        "tokens that greedy generates per prompt",
        {.range = NumberRange{1, 4096},
         .idle = belongs_to("--levels greedy", [runs] { return runs({kGreedy}); })}},
       {"--text",
        &options.text,
        "measure the perplexity of this text, and drafts on it: .txt, .json {\"docs\": [...]}, "
        "or JSON lines (.jsonl); - is stdin",
        {.kind = ValueKind::kFile, .takes_stdin = true}},
       {"--sample",
        &options.sample,
        "part of every tensor's rows that weights looks at",
        {.range = NumberRange{0, 1},
         .idle = belongs_to("--levels weights", [runs] { return runs({kWeights}); })}},
       {"--profile",
        &flags.profile,
        "arithmetic of the output: native, bf16, f32 (the source's is f32)",
        {.words = words_of(inference::profiles(), inference::profile_name),
         .idle = belongs_to("--levels layers, greedy and draft, --text and --reference",
                            [runs, &options] {
                              return runs({kLayers, kGreedy, kDraft}) || !options.text.empty() ||
                                     !options.reference.empty();
                            })}},
       {"--no-hashes",
        &flags.no_hashes,
        "compare sizes with the manifest, not bytes",
        {.idle = belongs_to("--levels structure", [runs] { return runs({kStructure}); })}}});
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags.mem_limit), threads_flag(&options.threads)});
}

void declare_source_changes(FlagTable& table, MeasurementOptions& flags,
                            const std::function<std::string_view()>& idle) {
  table.add(FlagGroup::kSource, {{"--sources",
                                  &flags.sources,
                                  "the directory of one of the sources of a composed output, by "
                                  "its name there; may be repeated (a recipe as the source names "
                                  "all)",
                                  {.kind = ValueKind::kNamedCheckpoint, .idle = idle}}});
  table.add(
      FlagGroup::kComparison,
      {{"--lora",
        &flags.lora,
        "the adapter that was folded into the output: it is compared with what the source is with "
        "it",
        {.kind = ValueKind::kFolder, .idle = idle}},
       {"--lora-scale", &flags.lora_scale, "the factor that it was given", {.needs = "--lora"}},
       {"--expert-b-order",
        &flags.expert_b_order,
        "the order that it was given",
        {.choices = {formats::kExpertOrders.begin(), formats::kExpertOrders.end()},
         .needs = "--lora"}}});
}

void declare_verification(FlagTable& table, MeasurementOptions& flags,
                          const std::function<bool()>& is_pair) {
  verify::VerificationOptions& options = flags.options;
  const auto of_pair = belongs_to("the comparison of two checkpoints", is_pair);
  Flag levels = levels_flag(flags);
  levels.rule.idle = of_pair;
  table.add(FlagGroup::kCommon, {std::move(levels)});
  table.add(FlagGroup::kSource, {family_flag(&options.family, kFamilyHelp),
                                 family_file_flag(&options.family),
                                 {"--source-config",
                                  &options.source_config,
                                  "config.json of the source, for shards without one, or one file",
                                  {.kind = ValueKind::kFile, .idle = of_pair}},
                                 {"--config",
                                  &options.output_config,
                                  "config.json of the output, for shards without one, or one file",
                                  {.kind = ValueKind::kFile}}});
  declare_gates(table, options.thresholds, options.requirements);
  declare_measurement_options(table, flags, is_pair);
  table.add(
      FlagGroup::kComparison,
      {{"--reference",
        &options.reference,
        "compare one checkpoint with activations recorded elsewhere (safetensors)",
        {.kind = ValueKind::kFile,
         .idle = belongs_to("one checkpoint; give either it or a second directory",
                            [is_pair] { return !is_pair(); })}},
       {"--activation-scales",
        &options.activation_scales,
        "statistics of ingot calibrate, a directory or a file, that static scales are compared "
        "with, by structure",
        {.kind = ValueKind::kPath}}});
  declare_source_changes(table, flags, of_pair);
}

std::string verified_source(const std::string& given, const MeasurementOptions& flags,
                            verify::VerificationOptions& options) {
  const std::filesystem::path path(given);
  const bool is_recipe = path.extension() == ".yaml" || path.extension() == ".yml";
  std::string base = given;
  if (is_recipe) {
    convert::Composition composition;
    const convert::Recipe recipe = read_recipe_file(given, &composition);
    for (const std::string& text : flags.sources) composition.replace(text);
    for (const convert::NamedDirectory& giver : composition.givers)
      options.sources[giver.name] = giver.path;
    base = composition.givers.front().path.string();
    if (!recipe.choices.lora.empty()) {
      formats::LoraOptions lora = recipe.choices.lora_options;
      lora.allow_residual = {Pattern("*")};
      options.editors.push_back(
          std::make_shared<const formats::LoraAdapter>(recipe.choices.lora, std::move(lora)));
    }
  } else {
    for (const std::string& text : flags.sources) {
      const std::size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
        throw Error(ErrorCode::kInvalidArgument, "--sources '{}' is not NAME=DIR", text);
      options.sources[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  if (const auto edits = options.sources.find(std::string(convert::kEditsName));
      edits != options.sources.end()) {
    options.editors.push_back(
        std::make_shared<const formats::EditedTensors>(edits->second, options.threads));
  }
  return base;
}

verify::VerificationOptions measurement_options(const MeasurementOptions& flags) {
  const auto profile = inference::find_profile(flags.profile);
  if (!profile)
    refuse_word("--profile", flags.profile, inference::profiles(), inference::profile_name);
  // A file or a demand that is not understood is refused before hours of work, not after.
  verify::make_thresholds({}, flags.options.thresholds, flags.options.requirements);
  verify::VerificationOptions options = flags.options;
  options.levels = verify::parse_levels(flags.levels);
  options.hashes = !flags.no_hashes;
  options.output_profile = *profile;
  options.threads = threads_of(options.threads);
  options.mem_limit = memory_budget(flags.mem_limit);
  options.tool_version = convert::kVersion;
  if (!flags.lora.empty()) {
    formats::LoraOptions lora{.scale = flags.lora_scale.value_or(1),
                              .expert_order = {},
                              .allow_residual = {Pattern("*")}};
    if (flags.expert_b_order) {
      lora.expert_order = parse_word<formats::ExpertOrder>(
          "--expert-b-order", *flags.expert_b_order, formats::kExpertOrders);
    }
    options.editors.push_back(
        std::make_shared<const formats::LoraAdapter>(flags.lora, std::move(lora)));
  }
  return options;
}

}  // namespace ingot
