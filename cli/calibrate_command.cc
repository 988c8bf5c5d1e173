#include <algorithm>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/size_option.h"
#include "cli/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/figures.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "shard/join/source.h"
#include "verify/calibrate/calibrate.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {
namespace {

using formats::Checkpoint;
using formats::Json;
using verify::CalibrationReport;

struct Words {
  std::string directory, text, out, family, mem_limit = "4GiB";
  std::size_t threads = 0, max_tokens = 0;
  bool json = false;
};

// The first documents that hold so many tokens together, the last one cut.
void keep_tokens(std::size_t most, std::vector<verify::Prompt>& documents) {
  std::size_t n = 0;
  while (n < documents.size() && most > 0) {
    auto& ids = documents[n++].ids;
    ids.resize(std::min(ids.size(), most));
    most -= ids.size();
  }
  documents.resize(n);
}

std::vector<verify::Prompt> read_text(const Words& words, const Checkpoint& source) {
  const auto tokenizer = verify::open_tokenizer(source);
  if (!tokenizer) {
    throw Error(ErrorCode::kMissingTensor, "has no tokenizer.json, so that no text can be read")
        .in_file(source.directory().string());
  }
  std::size_t n_documents = 0;
  std::vector<verify::Prompt> windows =
      verify::read_documents(words.text, source, *tokenizer, &n_documents);
  if (windows.size() > n_documents) {
    std::cerr << fmt::format("note: {} document{} read in {} windows of the model's context\n",
                             count_text(n_documents), n_documents == 1 ? "" : "s",
                             count_text(windows.size()));
  }
  if (words.max_tokens > 0) keep_tokens(words.max_tokens, windows);
  return windows;
}

std::string report_text(const Words& words, const CalibrationReport& report) {
  std::string text = fmt::format("{}: inputs of {} modules over {} tokens in {} window{}\n",
                                 words.out, count_text(report.modules), count_text(report.tokens),
                                 count_text(report.documents), report.documents == 1 ? "" : "s");
  for (const verify::UnvisitedExperts& unvisited : report.unvisited) {
    text += fmt::format(
        "layer {}: no token reached expert{} {}; filled with the maximum over the others (give "
        "more text)\n",
        unvisited.layer, unvisited.experts.size() == 1 ? "" : "s",
        fmt::join(unvisited.experts, ", "));
  }
  return text;
}

Json report_json(const Words& words, const CalibrationReport& report) {
  Json json = {{"schema", 1},
               {"command", "calibrate"},
               {"version", std::string(convert::kVersion)},
               {"output", words.out},
               {"documents", report.documents},
               {"tokens", report.tokens},
               {"modules", report.modules},
               {"unvisited", Json::array()}};
  for (const verify::UnvisitedExperts& unvisited : report.unvisited)
    json["unvisited"].push_back({{"layer", unvisited.layer}, {"experts", unvisited.experts}});
  return json;
}

int run_calibrate(const Words& words) {
  const std::size_t threads = words.threads == 0 ? available_processors() : words.threads;
  const Checkpoint source =
      shard::open_source(words.directory, {.open = {.family = words.family, .threads = threads}});
  shard::require_all_ranks(source);
  std::cerr << remark_lines("warning", source.remarks());
  const std::vector<verify::Prompt> documents = read_text(words, source);
  install_stop_signals();
  verify::CalibrateOptions options{.threads = threads,
                                   .mem_limit = parse_size(words.mem_limit, "--mem-limit"),
                                   .progress = {},
                                   .stop_requested = stop_requested};
  const bool shows = stderr_is_terminal();
  if (shows) {
    options.progress = [](std::uint64_t done, std::uint64_t all) {
      std::cerr << fmt::format("\rcalibrating: layer {} of {}", done, all) << std::flush;
    };
  }
  const CalibrationReport report = verify::calibrate(source, documents, words.out, options);
  if (shows) std::cerr << "\n";
  std::cout << (words.json ? formats::json_text(report_json(words, report))
                           : report_text(words, report));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_calibrate(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(
      FlagGroup::kCommon,
      {{"directory",
        &words->directory,
        "directory of the checkpoint, whole or in slices",
        {.is_required = true}},
       {"--text",
        &words->text,
        "what to read: a .txt file as one document, JSON {\"docs\": [...]}, or JSON lines (.jsonl)",
        {.is_required = true}},
       {"--out", &words->out, "safetensors file to write; must be absent", {.is_required = true}},
       {"--max-tokens",
        &words->max_tokens,
        "stop after so many tokens (default: read all)",
        {.is_positive = true}}});
  table.add(FlagGroup::kSource,
            {{"--family", &words->family, "model family instead of config.json's"}});
  table.add(FlagGroup::kJob,
            {{"--mem-limit", &words->mem_limit, "memory budget"},
             {"--threads", &words->threads, kThreadsHelp, {.range = kThreadRange}}});
  table.add(FlagGroup::kReport, {{"--json", &words->json, kJsonHelp}});
  table.set_footer(
      "Examples:\n"
      "  ingot calibrate DeepSeek-V3.2 --text sample.json --out statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to int8 --dialect modelslim --activations static "
      "--activation-scales statistics.safetensors");
  return [words] { return run_calibrate(*words); };
}

}  // namespace ingot::cli
