#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include "cli/commands.h"
#include "cli/convert_report.h"
#include "cli/progress.h"
#include "cli/size_option.h"
#include "cli/terminal.h"
#include "convert/execute.h"
#include "convert/output_directory.h"
#include "convert/plan.h"
#include "convert/recipe.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint.h"

namespace ingot::cli {

using convert::Recipe;
using formats::Checkpoint;

namespace {

constexpr std::uint64_t kMaxRecipeBytes = std::uint64_t{1} << 20;

// The words as given; validated into a recipe and options when the command runs.
struct Words {
  std::string input, output, to, recipe_file, family, mtp, explain, hash = "xxh3", log_file,
                                                                    progress = "auto";
  std::string max_shard_size, mem_limit = "4GiB";
  std::vector<std::string> rules, allow;
  std::size_t threads = 0;
  bool keep_files = false, dry_run = false, resume = false, force = false, consume_source = false;
  bool buffered = false, json = false;
};

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
  return recipe;
}

convert::PlanOptions plan_options(const Words& words) {
  convert::PlanOptions options;
  if (!words.max_shard_size.empty()) {
    options.shards.max_shard_bytes = parse_size(words.max_shard_size, "--max-shard-size");
  }
  return options;
}

// An append-only log, flushed line by line, so that a kill loses nothing.
std::shared_ptr<spdlog::logger> open_log(const std::string& path) {
  if (path.empty()) return nullptr;
  try {
    auto logger = std::make_shared<spdlog::logger>(
        "ingot", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    logger->flush_on(spdlog::level::trace);
    return logger;
  } catch (const spdlog::spdlog_ex& failure) {
    throw Error(ErrorCode::kIo, fmt::format("cannot open the log: {}", failure.what()))
        .in_file(path);
  }
}

int run_dry(const Words& words, const Checkpoint& source, const Recipe& recipe,
            const convert::Plan& plan, std::size_t threads) {
  const DryRun dry_run{
      .plan = plan,
      .source = source,
      .recipe = recipe,
      .memory = convert::plan_memory(plan, threads, parse_size(words.mem_limit, "--mem-limit")),
      .disk_bytes = convert::peak_disk_bytes(plan, source, words.consume_source),
      .free_bytes = convert::free_bytes(words.output)};
  std::cout << (words.json ? formats::json_text(dry_run_json(dry_run)) : dry_run_text(dry_run));
  return kExitDone;
}

// The table of contents of the program: read, plan, execute, report.
int run_convert(const Words& words) {
  const std::size_t threads = words.threads == 0 ? available_processors() : words.threads;
  Recipe recipe = make_recipe(words);
  convert::require_apart(words.input, words.output);

  const Checkpoint source = Checkpoint::open(
      words.input, {.family = words.family,
                    .allow_unknown = &recipe.allow.unknown_tensor,
                    .consumed_headers = words.resume ? convert::consumed_headers_of(words.output)
                                                     : std::filesystem::path(),
                    .threads = threads});
  convert::add_default_rules(recipe);

  const convert::PlanOptions shard_options = plan_options(words);
  const convert::Plan plan = convert::make_plan(source, recipe, shard_options);
  if (!words.explain.empty()) {
    std::cout << explain_text(plan, source, recipe, words.explain);
    return kExitDone;
  }
  if (words.dry_run) return run_dry(words, source, recipe, plan, threads);

  for (const std::string& warning : plan.warnings) std::cerr << "warning: " << warning << "\n";
  const std::shared_ptr<spdlog::logger> log = open_log(words.log_file);
  Progress progress(words.progress, "converting");
  install_stop_signals();
  const convert::ExecuteReport report = convert::execute(
      plan, source, recipe, shard_options, words.output,
      {.threads = threads,
       .mem_limit = parse_size(words.mem_limit, "--mem-limit"),
       .resume = words.resume,
       .force = words.force,
       .consume_source = words.consume_source,
       .sha256 = words.hash == "sha256",
       .direct_io = !words.buffered,
       .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); },
       .stop_requested = stop_requested,
       .log =
           [&](const std::string& line) {
             if (log) log->info(line);
           }});
  progress.finish();
  std::cout << (words.json ? formats::json_text(report_json(plan, report))
                           : report_text(plan, report));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_convert(CLI::App& app) {
  auto words = std::make_shared<Words>();
  app.add_option("input", words->input, "directory of the source checkpoint")->required();
  app.add_option("output", words->output, "directory to write; must be absent or empty")
      ->required();
  app.add_option("--to", words->to,
                 "scheme for every quantized tensor, e.g. bf16 (default: keep each scheme)");
  app.add_option("--rule", words->rules,
                 "PATTERN=SCHEME for single tensors; may be repeated, first match wins")
      ->allow_extra_args(false);
  app.add_option("--recipe", words->recipe_file, "YAML file of rules, after those of --rule");
  auto* shard = app.add_option("--max-shard-size", words->max_shard_size,
                               "deal tensors anew to files of at most this size");
  app.add_flag("--keep-files", words->keep_files,
               "keep the source's files and their contents (default)")
      ->excludes(shard);
  app.add_option("--mem-limit", words->mem_limit, "memory budget")->capture_default_str();
  app.add_option("--threads", words->threads, "threads (default: every processor)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--mtp", words->mtp, "MTP layers: convert as any other layer (default), or drop");
  app.add_option("--family", words->family,
                 "model family instead of config.json's; generic accepts any names");
  app.add_flag("--dry-run", words->dry_run, "print the plan and write nothing");
  app.add_option("--explain", words->explain,
                 "print which rule fires for TENSOR and what becomes of it");
  app.add_flag("--resume", words->resume, "continue a stopped conversion");
  app.add_flag("--force", words->force, "replace the checkpoint that is in the output");
  app.add_option("--hash", words->hash,
                 "xxh3 per tensor; sha256 adds a plain SHA-256 per file, in a second pass")
      ->check(CLI::IsMember({"xxh3", "sha256"}))
      ->capture_default_str();
  app.add_option("--allow", words->allow,
                 "accept nan-code=PATTERN, zero-scale=PATTERN or unknown-tensor=PATTERN; recorded "
                 "in the manifest")
      ->allow_extra_args(false);
  app.add_flag("--consume-source", words->consume_source,
               "delete each source file once its tensors are safe");
  app.add_flag("--buffered", words->buffered,
               "write through the page cache even where direct I/O works");
  app.add_option("--log", words->log_file, "append a line per event to this file");
  app.add_option("--progress", words->progress, "progress on stderr")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  app.add_flag("--json", words->json, "one JSON document on stdout");
  app.footer(
      "Examples:\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot convert IN OUT --to bf16 --dry-run\n"
      "  ingot convert IN OUT --rule 'model.layers.*.mlp.experts.*=keep' --to bf16\n"
      "  ingot convert IN OUT --max-shard-size 5GB            re-shard, every tensor byte for "
      "byte\n"
      "  ingot convert IN OUT --to bf16 --resume              continue after a kill");
  return [words] { return run_convert(*words); };
}

}  // namespace ingot::cli
