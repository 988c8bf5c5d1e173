#include "cli/report/engine_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/json/json.h"

namespace ingot::cli {

using engines::EngineVerdict;
using formats::Json;

namespace {

constexpr std::uint64_t kWeightsPerDevice = 60'000'000'000;
constexpr std::uint64_t kMaxDevices = 1024;

std::uint64_t n_devices(std::uint64_t n_bytes) {
  std::uint64_t n = 1;
  while (n < kMaxDevices && n_bytes / n > kWeightsPerDevice) n *= 2;
  return n;
}

// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

std::string serve_command(const ServedOutput& output, const EngineVerdict& verdict) {
  const engines::EngineRow& engine = *verdict.engine;
  if (engine.command.empty()) return {};
  std::string command = fmt::format("{} {}", engine.command, shell_word(output.directory));
  const std::uint64_t n = n_devices(output.n_bytes);
  if (n > 1 && !engine.ranks_option.empty())
    command += fmt::format(" {} {}", engine.ranks_option, n);
  for (const std::string& option : verdict.options) command += " " + option;
  return command;
}

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
      names.push_back(fmt::format("{} ({})", name, engines::evidence_text(verdict.evidence)));
    }
    if (verdict.engine == output.wanted) command = serve_command(output, verdict);
  }
  std::string text = names.empty() ? std::string("no engine that is known to")
                                   : fmt::format("{}", fmt::join(names, ", "));
  if (!of_others.empty()) {
    text += fmt::format("; {}: {}", engines::evidence_text(engines::Evidence::kNotOfFamily),
                        fmt::join(of_others, ", "));
  }
  if (!untried.empty()) text += fmt::format("; not tried: {}", fmt::join(untried, ", "));
  std::vector<std::pair<std::string, std::string>> lines = {{"loaded by", std::move(text)}};
  if (!command.empty()) lines.emplace_back("serve with", command);
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
    json.update({{"evidence", engines::evidence_text(verdict.evidence)},
                 {"options", verdict.options},
                 {"notes", verdict.notes},
                 {"serve", serve_command(output, verdict)}});
    return json;
  });
}

}  // namespace ingot::cli
