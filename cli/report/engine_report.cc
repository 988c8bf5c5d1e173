#include "cli/report/engine_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/json/json.h"

namespace ingot::cli {

using engines::EngineVerdict;
using formats::Json;

std::vector<std::pair<std::string, std::string>> engine_lines(const ServedOutput& output) {
  if (output.engines.empty()) return {};
  std::vector<std::string> names, untried, of_others;
  std::string command;
  for (const EngineVerdict& verdict : output.engines) {
    if (!verdict.loads) continue;
    std::string name(verdict.engine->name);
    if (!verdict.options.empty()) name += fmt::format(" with {}", fmt::join(verdict.options, " "));
    if (verdict.evidence == engines::Evidence::kNotTried) {
      untried.push_back(std::move(name));
    } else if (verdict.evidence == engines::Evidence::kNotOfFamily) {
      of_others.push_back(std::move(name));
    } else {
      names.push_back(fmt::format("{} ({})", name, verdict.engine->known_text(verdict.evidence)));
    }
    if (verdict.engine == output.wanted)
      command = engines::serve_command(verdict, output.checkpoint);
  }
  std::string text = names.empty() ? std::string("no engine that is known to")
                                   : fmt::format("{}", fmt::join(names, ", "));
  if (!of_others.empty()) {
    text += fmt::format("; {}: {}", engines::evidence_text(engines::Evidence::kNotOfFamily),
                        fmt::join(of_others, ", "));
  }
  if (!untried.empty()) text += fmt::format("; not tried: {}", fmt::join(untried, ", "));
  if (output.n_unknown > 0) {
    text += fmt::format("; loaders may refuse {} {} of role unknown", output.n_unknown,
                        output.n_unknown == 1 ? "tensor" : "tensors");
  }
  std::vector<std::pair<std::string, std::string>> lines = {{"loaded by", std::move(text)}};
  if (!command.empty()) lines.emplace_back("serve with", command);
  if (!command.empty() && !output.experts.empty()) lines.emplace_back("experts", output.experts);
  for (const EngineVerdict& verdict : output.engines) {
    if (!verdict.loads || (output.wanted != nullptr && output.wanted != verdict.engine)) continue;
    for (const std::string& note : verdict.notes)
      lines.emplace_back("hint", fmt::format("{}: {}", verdict.engine->name, note));
  }
  return lines;
}

Json engines_json(const ServedOutput& output) {
  return formats::json_list(output.engines, [&](const EngineVerdict& verdict) -> Json {
    Json json = {
        {"engine", verdict.engine->word}, {"name", verdict.engine->name}, {"loads", verdict.loads}};
    if (!verdict.loads) {
      json.update({{"tensor", verdict.tensor},
                   {"reason", verdict.reason},
                   {"is_silent", verdict.is_silent}});
      return json;
    }
    json.update({{"evidence", verdict.engine->known_text(verdict.evidence)},
                 {"options", verdict.options},
                 {"notes", verdict.notes},
                 {"serve", engines::serve_command(verdict, output.checkpoint)}});
    return json;
  });
}

}  // namespace ingot::cli
