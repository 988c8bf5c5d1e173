#include <array>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/flags/flag_table.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/model_config.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "formats/text/figures.h"
#include "formats/text/spelling.h"
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
  bool json = false;
};

SynthOptions make_options(const SynthFlags& flags, const FlagTable& table) {
  const bool has_config = !flags.config.empty();
  if (!has_config && flags.family.empty())
    throw Error(ErrorCode::kInvalidArgument, "--family or --config says which model to make");
  SynthOptions options = flags.options;
  const bool is_fp8 = !has_config && convert::parse_scheme_word(flags.scheme, "--scheme") ==
                                         formats::SchemeId::kFp8Block;
  std::vector<IdleFlag> idle = {
      {"--fp8-grid", table.is_given("--fp8-grid"), is_fp8, "--scheme fp8-block"}};
  for (const SizeWord& row : kSizes) {
    if (row.word == flags.like) options.size = row.size;
  }
  idle.push_back({"--like", table.is_given("--like"),
                  !has_config || options.size == SynthSize::kHeaders,
                  "models without --config (--like headers: to all)"});
  for (const char* option :
       {"--layers", "--dense-layers", "--mtp-layers", "--experts", "--hidden", "--moe-intermediate",
        "--intermediate", "--vocab", "--heads", "--scheme"})
    idle.push_back({option, table.is_given(option), !has_config, "models without --config"});
  refuse_idle_flags(idle);
  if (has_config) options.config = read_text_file(flags.config, formats::kMaxConfigBytes);
  options.family =
      has_config && flags.family.empty()
          ? formats::family_of(formats::parse_model_config(options.config, flags.config))
          : formats::find_family(flags.family);
  if (options.family == nullptr || options.family->rules.empty()) {
    if (!flags.family.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("there is no family '{}' (ingot list families){}", flags.family,
                              did_you_mean(flags.family, formats::family_entries(),
                                           &formats::FamilyEntry::name)));
    }
    throw Error(ErrorCode::kUnsupported,
                "its model_type is of no family (give --family, or one of your own with "
                "--family-file)")
        .in_file(flags.config);
  }
  options.fp8 = is_fp8;
  options.ue8m0 = flags.grid == "ue8m0";
  options.threads = threads_of(flags.threads);
  return options;
}

int run_synth(const SynthFlags& flags, const FlagTable& table) {
  const auto start = std::chrono::steady_clock::now();
  const SynthOptions options = make_options(flags, table);
  const formats::SynthReport report = formats::write_synthetic_checkpoint(flags.output, options);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json) {
    std::cout << formats::json_text({{"schema", 1},
                                     {"command", "synth"},
                                     {"output", flags.output},
                                     {"family", options.family->name},
                                     {"files", report.n_files},
                                     {"tensors", report.n_tensors},
                                     {"bytes", report.n_bytes},
                                     {"seconds", seconds}});
  } else {
    std::cout << fmt::format("{}: {} tensors, {} in {} file{}, {}\n", flags.output,
                             count_text(report.n_tensors), bytes_text(report.n_bytes),
                             report.n_files, report.n_files == 1 ? "" : "s", seconds_text(seconds));
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
  table.add(FlagGroup::kCommon,
            {required("output", &flags->output, kOutputHelp, ValueKind::kFolder),
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
              {.choices = size_words()}},
             {"--seed", &options.seed, "decides every byte, with the options below (default 0)"}});
  table.add(
      FlagGroup::kTarget,
      {{"--layers", &options.layers, "decoder layers (default 2; released number with headers)"},
       {"--dense-layers", &options.dense_layers,
        "how many of them, from the first, have a dense MLP"},
       {"--mtp-layers", &options.mtp_layers, "multi-token prediction layers after them"},
       {"--experts", &options.experts, "routed experts of a layer"},
       {"--hidden", &options.hidden, "hidden width"},
       {"--moe-intermediate", &options.moe_intermediate, "width of an expert"},
       {"--intermediate", &options.intermediate, "width of a dense MLP"},
       {"--vocab", &options.vocab, "tokens in the vocabulary"},
       {"--heads", &options.heads, "attention heads"},
       {"--scheme",
        &flags->scheme,
        "how the weights are held that the family's FP8 release quantizes",
        {.choices = {"fp8-block", "fp8", "bf16"}, .ignores_case = true}},
       {"--fp8-grid",
        &flags->grid,
        "scales: any F32 (amax), or powers of two (ue8m0)",
        {.choices = {"amax", "ue8m0"}}},
       {"--stacked", &options.stacked,
        "routed experts as stacks, in families that have them in both forms"},
       {"--shards", &options.shards, "weights files (default 1; released number with headers)"},
       {"--zero-block", &options.zero_block, "plant an all-zero 128x128 block"},
       {"--subnormal-scales", &options.subnormal_scales, "plant a tensor with subnormal scales"},
       {"--split-scale", &options.split_scale, "plant a scale in another file than its weight"}});
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {json_flag(&flags->json)});
  table.footer =
      "Examples:\n"
      "  ingot synth /tmp/tiny --family deepseek_v32 --like tiny --shards 2 --split-scale\n"
      "  ingot synth /tmp/load --family deepseek_v3 --layers 2 --experts 32 --shards 4     "
      "gigabytes for a benchmark\n"
      "  ingot synth /tmp/mine --config config.json                                        "
      "any family, in BF16\n"
      "  ingot synth /tmp/671b --family deepseek_v32 --like headers                        all "
      "92,425 tensors, as holes";
  return [flags, &table] { return run_synth(*flags, table); };
}

}  // namespace ingot::cli
