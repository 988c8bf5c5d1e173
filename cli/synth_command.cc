#include <array>
#include <chrono>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/idle_words.h"
#include "convert/recipe.h"
#include "formats/base/figures.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "synth/synth.h"

namespace ingot::cli {

using formats::SynthOptions;
using formats::SynthSize;

namespace {

struct SizeWord {
  std::string_view word;
  SynthSize size;
};
constexpr std::array kSizes = {SizeWord{"tiny", SynthSize::kTiny},
                               SizeWord{"layer", SynthSize::kLayer},
                               SizeWord{"671b-headers", SynthSize::k671bHeaders}};

// The words as given; numbers go straight to the options.
struct Words {
  std::string output, family, like = "layer", scheme = "fp8-block", grid = "amax";
  SynthOptions options;
  std::size_t threads = 0;
  bool json = false;
};

SynthOptions make_options(const Words& words, const CLI::App& app) {
  const bool is_fp8 =
      convert::parse_scheme_word(words.scheme, "--scheme") == formats::SchemeId::kFp8Block;
  const IdleWord idle[] = {
      {"--fp8-grid", app.count("--fp8-grid") > 0, is_fp8, "--scheme fp8-block"},
  };
  refuse_idle_words(idle);
  SynthOptions options = words.options;
  options.family = formats::find_family(words.family);
  for (const SizeWord& row : kSizes) {
    if (row.word == words.like) options.size = row.size;
  }
  options.fp8 = is_fp8;
  options.ue8m0 = words.grid == "ue8m0";
  options.threads = words.threads == 0 ? available_processors() : words.threads;
  return options;
}

int run_synth(const Words& words, const CLI::App& app) {
  const auto start = std::chrono::steady_clock::now();
  const formats::SynthReport report =
      formats::write_synthetic_checkpoint(words.output, make_options(words, app));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (words.json) {
    std::cout << formats::json_text({{"schema", 1},
                                     {"command", "synth"},
                                     {"output", words.output},
                                     {"family", words.family},
                                     {"files", report.n_files},
                                     {"tensors", report.n_tensors},
                                     {"bytes", report.n_bytes},
                                     {"seconds", seconds}});
  } else {
    std::cout << fmt::format("{}: {} tensors, {} in {} file{}, {}\n", words.output,
                             count_text(report.n_tensors), bytes_text(report.n_bytes),
                             report.n_files, report.n_files == 1 ? "" : "s",
                             seconds_text(seconds));
  }
  return kExitDone;
}

std::vector<std::string> family_words() {
  std::vector<std::string> names;
  for (const formats::Family* family : formats::families()) {
    if (!family->reference_config.empty()) names.emplace_back(family->name);
  }
  return names;
}

std::vector<std::string> size_words() {
  std::vector<std::string> names;
  for (const SizeWord& row : kSizes) names.emplace_back(row.word);
  return names;
}

}  // namespace

std::function<int()> declare_synth(CLI::App& app) {
  auto words = std::make_shared<Words>();
  SynthOptions& options = words->options;
  app.add_option("output", words->output, "directory to write; must be absent or empty")
      ->required();
  app.add_option("--family", words->family, "model family whose tensors to make")
      ->required()
      ->check(CLI::IsMember(family_words()));
  app.add_option("--like", words->like,
                 "widths: a tiny model for tests, few layers of the real one, or the whole "
                 "released model as sparse files")
      ->check(CLI::IsMember(size_words()))
      ->capture_default_str();
  app.add_option("--layers", options.layers,
                 "decoder layers (default 2; released number with 671b-headers)");
  app.add_option("--dense-layers", options.dense_layers,
                 "how many of them, from the first, have a dense MLP");
  app.add_option("--mtp-layers", options.mtp_layers, "multi-token prediction layers after them");
  app.add_option("--experts", options.experts, "routed experts of a layer");
  app.add_option("--hidden", options.hidden, "hidden width");
  app.add_option("--moe-intermediate", options.moe_intermediate, "width of an expert");
  app.add_option("--intermediate", options.intermediate, "width of a dense MLP");
  app.add_option("--vocab", options.vocab, "tokens in the vocabulary");
  app.add_option("--heads", options.heads, "attention heads");
  app.add_option("--scheme", words->scheme,
                 "how the weights are held that the family's FP8 release quantizes")
      ->check(CLI::IsMember({"fp8-block", "fp8", "bf16"}, CLI::ignore_case))
      ->capture_default_str();
  app.add_option("--fp8-grid", words->grid, "scales: any F32 (amax), or powers of two (ue8m0)")
      ->check(CLI::IsMember({"amax", "ue8m0"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "decides every byte, with the options above")
      ->capture_default_str();
  app.add_option("--shards", options.shards,
                 "weights files (default 1; released number with 671b-headers)");
  app.add_flag("--zero-block", options.zero_block, "plant an all-zero 128x128 block");
  app.add_flag("--subnormal-scales", options.subnormal_scales,
               "plant a tensor with subnormal scales");
  app.add_flag("--split-scale", options.split_scale,
               "plant a scale in another file than its weight");
  app.add_option("--threads", words->threads, "threads (default: every processor)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", words->json, "one JSON document on stdout");
  app.footer(
      "Examples:\n"
      "  ingot synth /tmp/tiny --family deepseek_v32 --like tiny --shards 2 --split-scale\n"
      "  ingot synth /tmp/load --family deepseek_v3 --layers 2 --experts 32 --shards 4     "
      "gigabytes for a benchmark\n"
      "  ingot synth /tmp/671b --family deepseek_v32 --like 671b-headers                   all "
      "92,425 tensors, as holes");
  return [words, &app] { return run_synth(*words, app); };
}

}  // namespace ingot::cli
