#include <iostream>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/inspect_report.h"
#include "cli/inspect_summary.h"
#include "cli/inspect_tensor.h"
#include "cli/terminal.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "shard/join/source.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;

namespace {

struct Words {
  std::string directory, pattern, family, config;
  bool tensors = false, json = false;
};

std::vector<std::size_t> matching_tensors(const Checkpoint& checkpoint, const std::string& text) {
  std::vector<std::size_t> found;
  const auto tensors = checkpoint.tensors();
  const std::optional<Pattern> pattern = text.empty() ? std::nullopt : std::optional<Pattern>(text);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!pattern || pattern->matches(tensors[i].name)) found.push_back(i);
  }
  if (pattern && found.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("no tensor matches '{}' (a glob covers the whole name; "
                            "see ingot inspect --tensors)",
                            text))
        .in_file(checkpoint.directory().string());
  }
  return found;
}

// A pattern asks for tensors: one is shown with its values, several are listed.
int run_inspect(const Words& words) {
  const std::size_t threads = available_processors();
  const Checkpoint checkpoint = shard::open_source(
      words.directory,
      {.open = {.family = words.family, .threads = threads}, .config = words.config});
  std::cerr << remark_lines("warning", checkpoint.remarks());
  Json json = {{"schema", 1}, {"command", "inspect"}, {"directory", words.directory}};
  json["warnings"] = checkpoint.remarks();
  std::string text;
  if (words.tensors || !words.pattern.empty()) {
    const std::vector<std::size_t> which = matching_tensors(checkpoint, words.pattern);
    if (which.size() == 1 && !words.tensors) {
      const formats::LogicalTensor& tensor = checkpoint.tensors()[which[0]];
      const auto statistics = tensor_statistics(checkpoint, tensor, threads);
      text = tensor_text(checkpoint, tensor, statistics);
      json["tensor"] = tensor_json(checkpoint, tensor);
      json["tensor"]["statistics"] = statistics_json(statistics);
    } else if (words.json) {
      json["tensors"] = tensors_json(checkpoint, which);
    } else {
      text = tensors_text(checkpoint, which);
    }
  } else {
    const Summary summary = summarize(checkpoint);
    text = summary_text(words.directory, checkpoint, summary);
    json.update(summary_json(checkpoint, summary));
  }
  std::cout << (words.json ? formats::json_text(json) : text);
  return kExitDone;
}

}  // namespace

std::function<int()> declare_inspect(FlagTable& table) {
  auto words = std::make_shared<Words>();
  table.add(
      FlagGroup::kCommon,
      {{"directory",
        &words->directory,
        "directory of the checkpoint, whole or in slices",
        {.is_required = true}},
       {"pattern", &words->pattern,
        "glob or re:EXPR over tensor names; one that matches a single tensor shows its values"},
       {"--tensors", &words->tensors, "list tensors, with pattern those that match"}});
  table.add(FlagGroup::kSource,
            {{"--family", &words->family,
              "model family instead of config.json's; generic accepts any names"},
             {"--config", &words->config,
              "config.json of the model, for shards that have none beside them"}});
  table.add(FlagGroup::kReport, {{"--json", &words->json, kJsonHelp}});
  table.set_footer(
      "Examples:\n"
      "  ingot inspect DeepSeek-V3.2\n"
      "  ingot inspect DeepSeek-V3.2 model.layers.3.mlp.experts.17.up_proj.weight\n"
      "  ingot inspect DeepSeek-V3.2 --tensors 'model.layers.61.*'\n"
      "  ingot inspect SOME-OTHER-MODEL --family generic --json");
  return [words] { return run_inspect(*words); };
}

}  // namespace ingot::cli
