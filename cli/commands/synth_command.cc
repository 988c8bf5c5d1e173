#include <array>
#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/model_config.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"
#include "report/figures.h"
#include "synth/synth.h"

namespace ingot::cli {

using formats::SynthOptions;
using formats::SynthSize;

namespace {

struct SizeWord {
  std::string_view word;
  SynthSize size;
};
constexpr std::array kSizes = {
    SizeWord{"tiny", SynthSize::kTiny}, SizeWord{"layer", SynthSize::kLayer},
    SizeWord{"headers", SynthSize::kHeaders}, SizeWord{"671b-headers", SynthSize::kHeaders}};

// The flags as given; numbers go straight to the options.
struct SynthFlags {
  std::string output, family, config, like = "layer", scheme = "fp8-block", grid = "amax";
  SynthOptions options;
  std::size_t threads = 0;
};

SynthSize size_of(const SynthFlags& flags) {
  return std::ranges::find(kSizes, flags.like, &SizeWord::word)->size;
}

bool is_fp8(const SynthFlags& flags) {
  return flags.config.empty() &&
         convert::parse_scheme_word(flags.scheme, "--scheme") == formats::SchemeId::kFp8Block;
}

SynthOptions make_options(const SynthFlags& flags) {
  const bool has_config = !flags.config.empty();
  if (!has_config && flags.family.empty())
    throw Error(ErrorCode::kInvalidArgument, "--family or --config says which model to make");
  SynthOptions options = flags.options;
  options.size = size_of(flags);
  if (has_config) options.config = read_text_file(flags.config, formats::kMaxConfigBytes);
  options.family =
      has_config && flags.family.empty()
          ? formats::family_of(formats::parse_model_config(options.config, flags.config))
          : formats::find_family(flags.family);
  if (options.family == nullptr || options.family->rules.empty()) {
    if (!flags.family.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument, "there is no family '{}' (ingot list families){}",
          flags.family,
          did_you_mean(flags.family, formats::family_entries(), &formats::FamilyEntry::name));
    }
    throw Error(ErrorCode::kUnsupported,
                "its model_type is of no family (give --family, or one of your own with "
                "--family-file)")
        .in_file(flags.config);
  }
  options.fp8 = is_fp8(flags);
  options.ue8m0 = flags.grid == "ue8m0";
  options.threads = threads_of(flags.threads);
  return options;
}

int run_synth(const SynthFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  const SynthOptions options = make_options(flags);
  const formats::SynthReport report = formats::write_synthetic_checkpoint(flags.output, options);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (answer().is_json) {
    answer().add({{"output", flags.output},
                  {"family", options.family->name},
                  {"files", report.n_files},
                  {"tensors", report.n_tensors},
                  {"bytes", report.n_bytes},
                  {"seconds", seconds}});
  } else {
    out() << fmt::format("{}: {} tensors, {} in {} file{}, {}\n", flags.output,
                         count_text(report.n_tensors), bytes_text(report.n_bytes), report.n_files,
                         report.n_files == 1 ? "" : "s", seconds_text(seconds));
  }
  return kExitDone;
}

std::vector<std::string> family_words() {
  std::vector<std::string> names;
  for (const formats::FamilyEntry& family : formats::family_entries()) {
    if (family.can_be_synthesized) names.emplace_back(family.name);
  }
  return names;
}

std::vector<std::string> size_words() {
  std::vector<std::string> names;
  for (const SizeWord& row : kSizes) names.emplace_back(row.word);
  return names;
}

}  // namespace

std::function<int()> declare_synth(FlagTable& table) {
  auto flags = std::make_shared<SynthFlags>();
  SynthOptions& options = flags->options;
  const FlagRule of_family{.idle = belongs_to("models without --config", [flags = flags.get()] {
                             return flags->config.empty();
                           })};
  table.add(FlagGroup::kCommon,
            {required_output("output", &flags->output, kOutputHelp, ValueKind::kFolder),
             {"--family",
              &flags->family,
              fmt::format("model family whose tensors to make; without --config one of {}",
                          fmt::join(family_words(), ", ")),
              {.words = family_words()}},
             family_file_flag(&flags->family),
             {"--config",
              &flags->config,
              "config.json whose model is made as it is, in BF16: any family, every width; without "
              "towers for images and sound",
              {.kind = ValueKind::kFile}},
             {"--like",
              &flags->like,
              "widths: a tiny model for tests, few layers of the real one, or the whole model, "
              "released or of --config, as sparse files (headers; 671b-headers is the same)",
              {.choices = size_words(),
               .idle = belongs_to("models without --config (--like headers: to all)",
                                  [flags = flags.get()] {
                                    return flags->config.empty() ||
                                           size_of(*flags) == SynthSize::kHeaders;
                                  })}},
             {"--seed", &options.seed, "decides every byte, with the options below (default 0)"}});
  table.add(
      FlagGroup::kTarget,
      {{"--layers", &options.layers, "decoder layers (default 2; released number with headers)",
        of_family},
       {"--dense-layers", &options.dense_layers,
        "how many of them, from the first, have a dense MLP", of_family},
       {"--mtp-layers", &options.mtp_layers, "multi-token prediction layers after them", of_family},
       {"--experts", &options.experts, "routed experts of a layer", of_family},
       {"--hidden", &options.hidden, "hidden width", of_family},
       {"--moe-intermediate", &options.moe_intermediate, "width of an expert", of_family},
       {"--intermediate", &options.intermediate, "width of a dense MLP", of_family},
       {"--vocab", &options.vocab, "tokens in the vocabulary", of_family},
       {"--heads", &options.heads, "attention heads", of_family},
       {"--scheme",
        &flags->scheme,
        "how the weights are held that the family's FP8 release quantizes",
        {.choices = {"fp8-block", "fp8", "bf16"}, .ignores_case = true, .idle = of_family.idle}},
       {"--fp8-grid",
        &flags->grid,
        "scales: any F32 (amax), or powers of two (ue8m0)",
        {.choices = {"amax", "ue8m0"},
         .idle =
             belongs_to("--scheme fp8-block", [flags = flags.get()] { return is_fp8(*flags); })}},
       {"--stacked", &options.stacked,
        "routed experts as stacks, in families that have them in both forms"},
       {"--shards", &options.shards, "weights files (default 1; released number with headers)"},
       {"--zero-block", &options.zero_block, "plant an all-zero 128x128 block"},
       {"--subnormal-scales", &options.subnormal_scales, "plant a tensor with subnormal scales"},
       {"--split-scale", &options.split_scale, "plant a scale in another file than its weight"}});
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot synth /tmp/tiny --family deepseek_v32 --like tiny --shards 2 --split-scale\n"
      "  ingot synth /tmp/load --family deepseek_v3 --layers 2 --experts 32 --shards 4     "
      "gigabytes for a benchmark\n"
      "  ingot synth /tmp/mine --config config.json                                        "
      "any family, in BF16\n"
      "  ingot synth /tmp/671b --family deepseek_v32 --like headers                        all "
      "92,425 tensors, as holes";
  return [flags] { return run_synth(*flags); };
}

}  // namespace ingot::cli
