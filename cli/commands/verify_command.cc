#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/flags/flag_table.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/base/spelling.h"
#include "formats/json/json.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

struct VerifyFlags {
  /// What flags set themselves; threads: 0 for every processor.
  verify::VerificationOptions options = {.threads = 0};
  std::string source, output, levels = "structure,weights", profile = "native", mem_limit = "4GiB";
  std::string html, markdown, progress = "auto";
  std::optional<std::size_t> n_worst;
  bool no_hashes = false, json = false;
};

std::vector<std::string> level_words() {
  std::vector<std::string> words = words_of(verify::levels(), &verify::LevelFacts::name);
  words.emplace_back("all");
  return words;
}

// A report that cannot be written is known before the work, not after.
void require_place_for(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(parent) && !std::filesystem::is_directory(path)) return;
  throw Error(ErrorCode::kNotFound, "cannot be written (no such folder, or a folder itself)")
      .in_file(path);
}

verify::VerificationOptions options_of(const VerifyFlags& flags) {
  const auto profile = inference::find_profile(flags.profile);
  if (!profile) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--profile '{}' is none of native, bf16, f32{}", flags.profile,
                    did_you_mean(flags.profile, inference::profiles(), inference::profile_name)));
  }
  verify::VerificationOptions options = flags.options;
  options.levels = verify::parse_levels(flags.levels);
  options.hashes = !flags.no_hashes;
  options.output_profile = *profile;
  options.threads = threads_of(options.threads);
  options.mem_limit = parse_size(flags.mem_limit, "--mem-limit");
  options.tool_version = convert::kVersion;
  options.stop_requested = stop_requested;
  return options;
}

// Refuses flags that would change nothing in what is compared.
void refuse_idle(const VerifyFlags& flags, const FlagTable& table) {
  const bool is_pair = !flags.output.empty();
  const std::vector<verify::Level> levels = verify::parse_levels(flags.levels);
  const auto has = [&](verify::Level level) {
    return is_pair && std::find(levels.begin(), levels.end(), level) != levels.end();
  };
  const bool generates = has(verify::Level::kGreedy);
  const bool computes = generates || has(verify::Level::kLayers);
  const auto word = [&](const char* option, bool acts, std::string_view belongs_to) {
    return IdleFlag{option, table.is_given(option), acts, belongs_to};
  };
  const IdleFlag idle[] = {
      word("--levels", is_pair, "the comparison of two checkpoints"),
      word("--reference", !is_pair, "one checkpoint; give either it or a second directory"),
      word("--prompts", computes, "--levels layers and greedy"),
      word("--tokens", generates, "--levels greedy"),
      word("--sample", has(verify::Level::kWeights), "--levels weights"),
      word("--profile", computes || !flags.options.text.empty() || !flags.options.reference.empty(),
           "--levels layers and greedy, --text and --reference"),
      word("--no-hashes", has(verify::Level::kStructure), "--levels structure"),
      word("--source-config", is_pair, "the comparison of two checkpoints"),
  };
  refuse_idle_flags(idle);
}

void print_report(const verify::Report& report, bool json, std::optional<std::size_t> n_worst) {
  constexpr std::size_t kJsonWorst = 100;
  std::cout << (json ? formats::json_text(
                           verify::report_json(report, std::max(n_worst.value_or(0), kJsonWorst)))
                     : verify::report_text(report, n_worst));
}

int run_verify(const VerifyFlags& flags, const FlagTable& table) {
  refuse_idle(flags, table);
  // A file or a demand that is not understood is refused before hours of work, not after.
  verify::make_thresholds({}, flags.options.thresholds, flags.options.requirements);
  require_place_for(flags.html);
  require_place_for(flags.markdown);
  verify::VerificationOptions options = options_of(flags);
  install_stop_signals();
  Progress progress(flags.progress, "headers and structure");
  // Weights in bytes, layers and tokens by number.
  options.progress = [&](std::string_view what, std::uint64_t done, std::uint64_t total) {
    const bool counts_bytes = what.find("weights") != std::string_view::npos;
    progress.begin(what, counts_bytes ? Progress::Unit::kBytes : Progress::Unit::kSteps);
    progress.update(done, total);
  };
  const verify::Report report = flags.output.empty()
                                    ? verify::verify_single(flags.source, options)
                                    : verify::verify_pair(flags.source, flags.output, options);
  progress.finish();
  notes() << progress.summary(options.threads);
  // First where no disk can be full.
  print_report(report, flags.json, flags.n_worst);
  if (!flags.html.empty()) write_text_file(flags.html, verify::report_html(report));
  if (!flags.markdown.empty()) write_text_file(flags.markdown, verify::report_markdown(report));
  return report.passed() ? kExitDone : kExitBelowThreshold;
}

}  // namespace

std::function<int()> declare_verify(FlagTable& table) {
  auto flags = std::make_shared<VerifyFlags>();
  verify::VerificationOptions& options = flags->options;
  table.add(
      FlagGroup::kCommon,
      {required("source", &flags->source,
                "the checkpoint that is right (or the only one); may be one .safetensors file",
                ValueKind::kPath),
       {"output",
        &flags->output,
        "the checkpoint made of it, in any format, dialect and slicing",
        {.kind = ValueKind::kPath}},
       {"--levels",
        &flags->levels,
        fmt::format("how closely: {}, or all",
                    names_of(verify::levels(), &verify::LevelFacts::name)),
        {.words = level_words()}}});
  table.add(FlagGroup::kSource,
            {family_flag(&options.family, kFamilyHelp),
             {"--source-config",
              &options.source_config,
              "config.json of the source, for shards that have none beside them, or one file",
              {.kind = ValueKind::kFile}},
             {"--config",
              &options.output_config,
              "config.json of the output, for shards that have none beside them, or one file",
              {.kind = ValueKind::kFile}}});
  declare_gates(table, options.thresholds, options.requirements);
  table.add(FlagGroup::kComparison,
            {{"--prompts",
              &options.prompts,
              "texts for layers and greedy, separated by blank lines, or JSON lines (.jsonl) "
              "(default: built in); - is stdin",
              {.kind = ValueKind::kFile, .takes_stdin = true}},
             {"--tokens",
              &options.greedy_tokens,
              "tokens that greedy generates per prompt",
              {.range = NumberRange{1, 4096}}},
             {"--text",
              &options.text,
              "measure the perplexity of this text: .txt, .json {\"docs\": [...]}, or JSON lines "
              "(.jsonl); - is stdin",
              {.kind = ValueKind::kFile, .takes_stdin = true}},
             {"--reference",
              &options.reference,
              "compare one checkpoint with activations recorded elsewhere (safetensors)",
              {.kind = ValueKind::kFile}},
             {"--activation-scales",
              &options.activation_scales,
              "file of ingot calibrate that static scales are compared with, by structure",
              {.kind = ValueKind::kFile}},
             {"--sample",
              &options.sample,
              "part of every tensor's rows that weights looks at",
              {.range = NumberRange{0, 1}}},
             {"--profile",
              &flags->profile,
              "arithmetic of the output: native, bf16, f32 (the source's is f32)",
              {.words = words_of(inference::profiles(), inference::profile_name)}},
             {"--no-hashes", &flags->no_hashes, "compare sizes with the manifest, not bytes"}});
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags->mem_limit), threads_flag(&options.threads),
                              progress_flag(&flags->progress)});
  declare_worst(table, flags->n_worst);
  table.add(FlagGroup::kReport, {{"--html",
                                  &flags->html,
                                  "write the report as one self-contained page",
                                  {.kind = ValueKind::kFile}},
                                 {"--markdown",
                                  &flags->markdown,
                                  "write the report for a model card",
                                  {.kind = ValueKind::kFile}},
                                 json_flag(&flags->json)});
  table.footer =
      "Examples:\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-int8                        structure and every "
      "weight\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-nvfp4-tp8 --levels all --html report.html\n"
      "  ingot verify IN OUT --levels layers --require 'layers.cosine>=0.999'\n"
      "  ingot verify DeepSeek-V3.2-int8 --text wiki.txt                      perplexity\n"
      "  ingot verify DeepSeek-V3.2 --reference recorded.safetensors          against another "
      "runtime\n"
      "Exit code 0 when every gate is passed, 1 when one is not, 2 when something could not be "
      "done.";
  return [flags, &table] { return run_verify(*flags, table); };
}

}  // namespace ingot::cli
