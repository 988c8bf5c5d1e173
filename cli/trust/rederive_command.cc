#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "cli/trust/derivation.h"
#include "convert/output/version.h"
#include "convert/rederive.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/signed/bundle.h"
#include "formats/signed/keys.h"
#include "formats/signed/statement.h"
#include "formats/text/list_text.h"
#include "library/options/flag_table.h"
#include "report/figures.h"

namespace ingot::cli {

namespace {

namespace fs = std::filesystem;
using convert::RederiveReport;
using formats::Json;

constexpr double kUsualMiss = 0.05;
constexpr std::size_t kMostShown = 20;

struct RederiveFlags {
  std::string output, progress = "auto";
  GivenSource given;
  fs::path key, bundle;
  std::optional<std::uint64_t> sample, seed;
  bool all = false;
  std::size_t threads = 0;
};

// How an output was made, and who says so.
struct Told {
  Derivation derivation;
  std::string by;  ///< file
  bool is_signed = false;
};

Told told_of(const RederiveFlags& flags) {
  fs::path bundle = flags.bundle;
  const fs::path usual = fs::path(flags.output) / formats::kAttestationName;
  if (bundle.empty() && (fs::exists(usual) || !flags.key.empty())) bundle = usual;
  if (bundle.empty()) {
    return {.derivation = recorded_derivation(flags.output),
            .by = std::string(formats::kManifestName),
            .is_signed = false};
  }
  const std::string where = bundle.string();
  const formats::Bundle read = formats::read_bundle(bundle);
  if (!flags.key.empty()) formats::require_signed(read, formats::PublicKey::read(flags.key), where);
  const formats::Statement statement = formats::parse_statement(read.payload, where);
  Told told{.derivation = stated_derivation(statement, where),
            .by = where,
            .is_signed = !flags.key.empty()};
  require_stated_inputs(statement, where, flags.given);
  return told;
}

// How likely a sample of that size misses so many altered tensors.
struct MissRow {
  std::uint64_t n_altered;
  double probability;
};
std::vector<MissRow> miss_rows(const RederiveReport& report) {
  std::vector<std::uint64_t> numbers = {1};
  for (const double share : {0.001, 0.01, 0.1}) {
    const auto n = static_cast<std::uint64_t>(share * static_cast<double>(report.n_tensors));
    if (n > numbers.back()) numbers.push_back(n);
  }
  std::vector<MissRow> rows;
  for (const std::uint64_t n : numbers) {
    rows.push_back(
        {.n_altered = n,
         .probability = convert::missing_probability(report.n_tensors, report.n_drawn, n)});
  }
  return rows;
}

// A probability that is no zero is not written as one.
std::string probability_text(double probability) {
  constexpr double kLeast = 0.0001;
  return probability > 0 && probability < kLeast ? fmt::format("<{:.4f}", kLeast)
                                                 : fmt::format("{:.4f}", probability);
}

// The sentence of a sample, or none where every tensor was drawn.
std::string sample_text(const RederiveReport& report) {
  if (report.n_drawn == report.n_tensors) return "misses    nothing: every tensor was made again\n";
  std::string text;
  for (const MissRow& row : miss_rows(report)) {
    const std::string probability = probability_text(row.probability);
    text += text.empty() ? "1 altered tensor with probability " + probability
                         : fmt::format(", {}: {}", count_text(row.n_altered), probability);
  }
  const std::uint64_t found = convert::least_found(report.n_tensors, report.n_drawn, kUsualMiss);
  return fmt::format(
      "misses    {}\nfinds     {} altered tensors or more ({:.2f}%) with a probability of "
      "{:.0f}%\n",
      text, count_text(found),
      100.0 * static_cast<double>(found) / static_cast<double>(report.n_tensors),
      100 * (1 - kUsualMiss));
}

std::string verdict_text(std::size_t n) {
  return n == 0 ? "equal" : fmt::format("{} DIFFER", count_text(n));
}

std::string rederivation_text(const RederiveReport& report, std::uint64_t seed) {
  std::string text;
  for (std::size_t i = 0; i < std::min(report.files.size(), kMostShown); ++i)
    text += fmt::format("{}: {}\n", printable(report.files[i].file), report.files[i].fact);
  for (std::size_t i = 0; i < std::min(report.tensors.size(), kMostShown); ++i) {
    const convert::DifferingTensor& at = report.tensors[i];
    text += fmt::format("{}: tensor '{}': differs in '{}', from byte {} of the file on\n",
                        printable(at.file), printable(at.tensor), printable(at.part), at.offset);
  }
  if (report.tensors.size() > kMostShown)
    text += fmt::format("and {} more\n", count_text(report.tensors.size() - kMostShown));
  const std::uint64_t others = report.n_compared - report.n_drawn;
  text += fmt::format(
      "tensors   {} of {} made again{}, {}: {}\n", count_text(report.n_drawn),
      count_text(report.n_tensors),
      report.n_drawn == report.n_tensors ? std::string() : fmt::format(" (seed {})", seed),
      bytes_text(report.n_bytes), verdict_text(report.tensors.size()));
  if (others > 0) {
    text += fmt::format("          {} of them, not drawn, share a scale with one that was\n",
                        count_text(others));
  }
  text += fmt::format("files     {} headers, JSON and side files: {}\n", count_text(report.n_files),
                      verdict_text(report.files.size()));
  text += sample_text(report);
  if (!report.not_derived.empty()) {
    text += fmt::format("not made  {}\n", printable(list_text(report.not_derived, 4)));
  }
  return text;
}

Json rederivation_json(const RederiveReport& report, std::uint64_t seed) {
  Json misses = formats::json_list(miss_rows(report), [](const MissRow& row) {
    return Json{{"altered", row.n_altered}, {"probability", row.probability}};
  });
  Json tensors = formats::json_list(report.tensors, [](const convert::DifferingTensor& at) {
    return Json{{"tensor", at.tensor}, {"part", at.part}, {"file", at.file}, {"byte", at.offset}};
  });
  Json files = formats::json_list(report.files, [](const convert::DifferingFile& at) {
    return Json{{"file", at.file}, {"fact", at.fact}};
  });
  return {{"tensors", report.n_tensors},
          {"drawn", report.n_drawn},
          {"compared", report.n_compared},
          {"n_bytes", report.n_bytes},
          {"files", report.n_files},
          {"seed", seed},
          {"differing_tensors", std::move(tensors)},
          {"differing_files", std::move(files)},
          {"not_compared", report.not_derived},
          {"misses", std::move(misses)}};
}

int run_rederive(RederiveFlags& flags) {
  const StopScope stop = stop_at_signals("tensors were made again");
  flags.given.threads = threads_of(flags.threads);
  require_finished(flags.output);
  const Told told = told_of(flags);
  if (std::error_code failure; fs::equivalent(flags.output, flags.given.directory, failure)) {
    throw Error(ErrorCode::kInvalidArgument,
                "is the output itself: what it was made from is not in it (--source)")
        .in_file(flags.given.directory);
  }
  std::vector<std::string> remarks;
  if (told.derivation.tool_version != convert::kVersion) {
    remarks.push_back(
        fmt::format("{} says that ingot {} made this, and this is {}: another version may make "
                    "other bytes of the same recipe",
                    told.by, printable(told.derivation.tool_version), convert::kVersion));
  }
  if (!told.is_signed && told.by != formats::kManifestName)
    remarks.push_back("the signature of the statement is not checked (--key)");
  warn_of(flags.output, remarks);
  // A maker who knows the seed beforehand knows which tensors are looked at.
  const std::uint64_t seed = flags.all    ? 0
                             : flags.seed ? *flags.seed
                                          : std::uint64_t{std::random_device()()};
  Progress progress(flags.progress, "headers");
  const library::Conversion conversion = plan_again(told.derivation, flags.output, flags.given);
  if (!is_recorded_source(told.derivation, conversion, flags.given.threads)) {
    warn_of(flags.output, {fmt::format("{} is not the source that {} tells of",
                                       printable(flags.given.directory), told.by)});
  }
  progress.begin("making tensors again");
  convert::RederiveOptions options{
      .sample = flags.all ? std::nullopt : std::optional(flags.sample.value_or(64)),
      .seed = seed,
      .threads = flags.given.threads,
      .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }};
  const RederiveReport report = convert::rederive(conversion.plan, flags.output, options);
  progress.finish();
  notes() << progress.summary(flags.given.threads);
  answer().add({{"passed", report.passed()},
                {"made_by", told.derivation.tool_version},
                {"told_by", told.by},
                {"signed", told.is_signed},
                {"rederivation", rederivation_json(report, seed)}});
  if (!answer().is_json) out() << rederivation_text(report, seed);
  return report.passed() ? kExitDone : kExitBelowThreshold;
}

}  // namespace

std::function<int()> declare_rederive(FlagTable& table) {
  auto flags = std::make_shared<RederiveFlags>();
  table.add(
      FlagGroup::kCommon,
      {required("output", &flags->output, "directory that a conversion wrote", ValueKind::kFolder),
       {"--source",
        &flags->given.directory,
        "the checkpoint that it was made from",
        {.is_required = true, .kind = ValueKind::kCheckpoint}},
       {"--sample",
        &flags->sample,
        "tensors that are drawn and made again, with all their parts (default 64)",
        {.is_positive = true, .excludes = {"--all"}}},
       {"--all", &flags->all, "make every tensor again"},
       {"--seed",
        &flags->seed,
        "decides which tensors are drawn (default: a random one, which is told)",
        {.excludes = {"--all"}}}});
  table.add(FlagGroup::kSource,
            {{"--with",
              &flags->given.inputs,
              "OPTION=PATH: the file of an option that the conversion had, such as importance=DIR",
              {.value_name = "OPTION=PATH"}}});
  table.add(FlagGroup::kComparison,
            {{"--bundle",
              &flags->bundle,
              "statement that says how the output was made (default: ingot.intoto.json in the "
              "output, else its ingot.json)",
              {.kind = ValueKind::kFile}},
             {"--key",
              &flags->key,
              "public key whose signature the statement must have",
              {.kind = ValueKind::kFile}}});
  table.add(FlagGroup::kJob, {threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot rederive OUT --source DeepSeek-V3.2                  64 tensors, drawn at random\n"
      "  ingot rederive OUT --source DeepSeek-V3.2 --sample 2000 --seed 17\n"
      "  ingot rederive OUT --source DeepSeek-V3.2 --all --key key.pub.pem\n"
      "  ingot rederive OUT --source DeepSeek-V3.2 --with importance=statistics.safetensors\n"
      "Exit code 1 where a tensor, or a file around the weights, is another one.";
  return [flags] { return run_rederive(*flags); };
}

}  // namespace ingot::cli
