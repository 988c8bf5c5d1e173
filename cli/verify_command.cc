#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/idle_words.h"
#include "cli/job_option.h"
#include "cli/progress.h"
#include "cli/size_option.h"
#include "cli/terminal.h"
#include "cli/verify_words.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

struct Words {
  std::string source, output, family, source_config, output_config;
  std::string levels = "structure,weights", profile = "native", mem_limit = "4GiB";
  std::string prompts, text, reference, activation_scales, html, markdown, progress = "auto";
  GateWords gates;
  double sample = 1;
  std::size_t threads = 0, tokens = 20;
  std::optional<std::size_t> n_worst;
  bool no_hashes = false, json = false;
};

// A report that cannot be written is known before the work, not after.
void require_place_for(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(parent) && !std::filesystem::is_directory(path)) return;
  throw Error(ErrorCode::kNotFound, "cannot be written (no such folder, or a folder itself)")
      .in_file(path);
}

verify::VerificationOptions options_of(const Words& words) {
  const auto profile = inference::find_profile(words.profile);
  if (!profile) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--profile '{}' is none of native, bf16, f32", words.profile));
  }
  verify::VerificationOptions options{
      .levels = verify::parse_levels(words.levels),
      .family = words.family,
      .source_config = words.source_config,
      .output_config = words.output_config,
      .prompts = words.prompts,
      .text = words.text,
      .reference = words.reference,
      .activation_scales = words.activation_scales,
      .sample = words.sample,
      .hashes = !words.no_hashes,
      .greedy_tokens = words.tokens,
      .output_profile = *profile,
      .threads = words.threads == 0 ? available_processors() : words.threads,
      .mem_limit = parse_size(words.mem_limit, "--mem-limit"),
      .tool_version = std::string(convert::kVersion),
      .stop_requested = stop_requested};
  words.gates.add_to(options);
  return options;
}

// One bar after the other: weights in bytes, layers and tokens by number.
class Stages {
 public:
  explicit Stages(std::string mode) : mode_(std::move(mode)) {}
  void update(std::string_view what, std::uint64_t done, std::uint64_t total) {
    if (what != what_) {
      finish();
      what_ = what;
      const bool counts_bytes = what.find("weights") != std::string_view::npos;
      progress_.emplace(mode_, what_,
                        counts_bytes ? Progress::Unit::kBytes : Progress::Unit::kSteps);
    }
    progress_->update(done, total);
  }
  void finish() {
    if (progress_) progress_->finish();
    progress_.reset();
  }

 private:
  std::string mode_, what_;
  std::optional<Progress> progress_;
};

// Words that would change nothing in what is compared.
void refuse_idle(const Words& words, const FlagTable& table) {
  const bool is_pair = !words.output.empty();
  const std::vector<verify::Level> levels = verify::parse_levels(words.levels);
  const auto has = [&](verify::Level level) {
    return is_pair && std::find(levels.begin(), levels.end(), level) != levels.end();
  };
  const bool generates = has(verify::Level::kGreedy);
  const bool computes = generates || has(verify::Level::kLayers);
  const auto word = [&](const char* option, bool acts, std::string_view belongs_to) {
    return IdleWord{option, table.is_given(option), acts, belongs_to};
  };
  const IdleWord idle[] = {
      word("--levels", is_pair, "the comparison of two checkpoints"),
      word("--reference", !is_pair, "one checkpoint; give either it or a second directory"),
      word("--prompts", computes, "--levels layers and greedy"),
      word("--tokens", generates, "--levels greedy"),
      word("--sample", has(verify::Level::kWeights), "--levels weights"),
      word("--profile", computes || !words.text.empty() || !words.reference.empty(),
           "--levels layers and greedy, --text and --reference"),
      word("--no-hashes", has(verify::Level::kStructure), "--levels structure"),
      word("--source-config", is_pair, "the comparison of two checkpoints"),
  };
  refuse_idle_words(idle);
}

int run_verify(const Words& words, const FlagTable& table) {
  refuse_idle(words, table);
  words.gates.require_valid();
  require_place_for(words.html);
  require_place_for(words.markdown);
  verify::VerificationOptions options = options_of(words);
  install_stop_signals();
  Stages stages(words.progress);
  options.progress = [&](std::string_view what, std::uint64_t done, std::uint64_t total) {
    stages.update(what, done, total);
  };
  const verify::Report report = words.output.empty()
                                    ? verify::verify_single(words.source, options)
                                    : verify::verify_pair(words.source, words.output, options);
  stages.finish();
  // First where no disk can be full.
  print_report(report, words.json, words.n_worst);
  if (!words.html.empty()) write_text_file(words.html, verify::report_html(report));
  if (!words.markdown.empty()) write_text_file(words.markdown, verify::report_markdown(report));
  return exit_code_of(report);
}

}  // namespace

std::function<int()> declare_verify(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(
      FlagGroup::kCommon,
      {{"source",
        &words->source,
        "the checkpoint that is right (or the only one)",
        {.is_required = true}},
       {"output", &words->output, "the checkpoint made of it, in any format, dialect and slicing"},
       {"--levels", &words->levels, fmt::format("how closely: {}, or all", level_words())}});
  table.add(FlagGroup::kSource,
            {{"--family", &words->family,
              "model family instead of config.json's; generic accepts any names"},
             {"--source-config", &words->source_config,
              "config.json of the source, for shards that have none beside them"},
             {"--config", &words->output_config,
              "config.json of the output, for shards that have none beside them"}});
  declare_gates(table, words->gates);
  table.add(FlagGroup::kComparison,
            {{"--prompts", &words->prompts,
              "texts for layers and greedy, separated by blank lines, or JSON lines (.jsonl) "
              "(default: built in)"},
             {"--tokens",
              &words->tokens,
              "tokens that greedy generates per prompt",
              {.range = NumberRange{1, 4096}}},
             {"--text", &words->text,
              "measure the perplexity of this text: .txt, .json {\"docs\": [...]}, or JSON lines "
              "(.jsonl)"},
             {"--reference", &words->reference,
              "compare one checkpoint with activations recorded elsewhere (safetensors)"},
             {"--activation-scales", &words->activation_scales,
              "file of ingot calibrate that static scales are compared with, by structure"},
             {"--sample",
              &words->sample,
              "part of every tensor's rows that weights looks at",
              {.range = NumberRange{0, 1}}},
             {"--profile", &words->profile,
              "arithmetic of the output: native, bf16, f32 (the source's is f32)"},
             {"--no-hashes", &words->no_hashes, "compare sizes with the manifest, not bytes"}});
  table.add(FlagGroup::kJob, {{"--mem-limit", &words->mem_limit, "memory budget"},
                              {"--threads", &words->threads, kThreadsHelp, {.range = kThreadRange}},
                              {"--progress",
                               &words->progress,
                               "progress on stderr",
                               {.choices = {"auto", "always", "never"}}}});
  declare_worst(table, words->n_worst);
  table.add(FlagGroup::kReport,
            {{"--html", &words->html, "write the report as one self-contained page"},
             {"--markdown", &words->markdown, "write the report for a model card"},
             {"--json", &words->json, kJsonHelp}});
  table.set_footer(
      "Examples:\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-int8                        structure and every "
      "weight\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-nvfp4-tp8 --levels all --html report.html\n"
      "  ingot verify IN OUT --levels layers --require 'layers.cosine>=0.999'\n"
      "  ingot verify DeepSeek-V3.2-int8 --text wiki.txt                      perplexity\n"
      "  ingot verify DeepSeek-V3.2 --reference recorded.safetensors          against another "
      "runtime\n"
      "Exit code 0 when every gate is passed, 1 when one is not, 2 when something could not be "
      "done.");
  return [words, &table] { return run_verify(*words, table); };
}

}  // namespace ingot::cli
