#include "cli/commands/measurement.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/text/spelling.h"

namespace ingot::cli {
namespace {

void require_place_for(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(parent) && !std::filesystem::is_directory(path)) return;
  throw Error(ErrorCode::kNotFound, "cannot be written (no such folder, or a folder itself)")
      .in_file(path);
}

}  // namespace

Flag levels_flag(MeasurementFlags& flags) {
  std::vector<std::string> words = words_of(verify::levels(), &verify::LevelFacts::name);
  words.emplace_back("all");
  return {
      "--levels",
      &flags.levels,
      fmt::format("how closely: {}, or all", names_of(verify::levels(), &verify::LevelFacts::name)),
      {.words = std::move(words)}};
}

void declare_measurement(FlagTable& table, MeasurementFlags& flags,
                         const std::function<bool()>& is_pair) {
  verify::VerificationOptions& options = flags.options;
  // Whether one of these levels is run.
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
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags.mem_limit), threads_flag(&options.threads),
                              progress_flag(&flags.progress)});
  declare_worst(table, flags.n_worst);
  table.add(FlagGroup::kReport, {{"--html",
                                  &flags.html,
                                  "write the report as one self-contained page",
                                  {.kind = ValueKind::kFile}},
                                 {"--markdown",
                                  &flags.markdown,
                                  "write the report for a model card",
                                  {.kind = ValueKind::kFile}},
                                 json_flag(&answer().is_json)});
}

verify::VerificationOptions measurement_options(const MeasurementFlags& flags) {
  require_place_for(flags.html);
  require_place_for(flags.markdown);
  const auto profile = inference::find_profile(flags.profile);
  if (!profile)
    refuse_word("--profile", flags.profile, inference::profiles(), inference::profile_name);
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

std::function<void(std::string_view, std::uint64_t, std::uint64_t)> stages_of(Progress& progress) {
  return [&progress](std::string_view what, std::uint64_t done, std::uint64_t total) {
    const bool counts_bytes = what.find("weights") != std::string_view::npos;
    progress.begin(what, counts_bytes ? Progress::Unit::kBytes : Progress::Unit::kSteps);
    progress.update(done, total);
  };
}

std::size_t json_worst(const MeasurementFlags& flags) {
  constexpr std::size_t kJsonWorst = 100;
  return std::max(flags.n_worst.value_or(0), kJsonWorst);
}

}  // namespace ingot::cli
