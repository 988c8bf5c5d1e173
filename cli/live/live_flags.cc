#include "cli/live/live_flags.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <ostream>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/live/checksums.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "engines/live/live_answer.h"
#include "engines/live/live_forms.h"
#include "engines/versions/versions.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/printable.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/live/live_check.h"
#include "report/figures.h"

namespace ingot::cli {
namespace {

using engines::LiveCard;
using formats::Json;
using library::LiveReport;
using library::LiveRow;
using library::LiveState;

constexpr std::size_t kMostLiveLines = 20, kMostLiveRows = 1000;

// The generation of each GPU whose kernels were read.
struct CardRow {
  std::string_view gpu;
  LiveCard card;
};
constexpr CardRow kCards[] = {{"a100", LiveCard::kAmpere},
                              {"l40s", LiveCard::kAmpere},
                              {"h100", LiveCard::kHopper},
                              {"h200", LiveCard::kHopper},
                              {"b200", LiveCard::kBlackwell}};

std::optional<LiveCard> card_of(const std::string& gpu) {
  if (gpu.empty()) return std::nullopt;
  const auto* const row = std::ranges::find(kCards, gpu, &CardRow::gpu);
  if (row == std::end(kCards)) refuse_word("--gpu", gpu, kCards, &CardRow::gpu);
  return row->card;
}

std::string name_of(engines::Engine engine) {
  for (const engines::EngineRow* row : engines::engines()) {
    if (row->engine == engine) return std::string(row->name);
  }
  return {};
}

// The key of the process's environment is read here only, and never printed.
std::string answer_text(const LiveFlags& flags) {
  if (!flags.answer.empty()) return read_text_file(flags.answer, engines::kMaxLiveBytes);
  const char* const token = std::getenv("INGOT_LIVE_TOKEN");
  return ask_checksums({.url = flags.url,
                        .token = token != nullptr ? token : "",
                        .allows_http = flags.allow_http,
                        .timeout_seconds = flags.timeout_seconds,
                        .stop_requested = stop_question()});
}

std::string place_text(const engines::LivePlace& place) {
  return fmt::format("dp{}:pp{}:tp{}", place.dp, place.pp, place.tp);
}

// Counts and bytes of the rows of a state, by their facts.
std::string state_text(const LiveReport& report, LiveState state) {
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> by_fact;
  for (const LiveRow& row : report.rows) {
    if (row.state != state) continue;
    ++by_fact[row.fact].first;
    by_fact[row.fact].second += row.n_bytes;
  }
  std::string text;
  for (const auto& [fact, sums] : by_fact) {
    text += fmt::format("{:<15}{} parameters, {}{}\n", library::live_state_name(state),
                        count_text(sums.first), bytes_text(sums.second),
                        fact.empty() ? "" : fmt::format(": {}", fact));
  }
  return text;
}

std::string live_text(const LiveReport& report) {
  std::string text;
  std::size_t shown = 0;
  for (const LiveState state : {LiveState::kDiffers, LiveState::kMissing}) {
    for (const LiveRow& row : report.rows) {
      if (row.state != state || ++shown > kMostLiveLines) continue;
      text += fmt::format("{}: {}: {}{}\n", place_text(row.place), printable(row.name),
                          library::live_state_name(state), row.fact.empty() ? "" : ": " + row.fact);
    }
  }
  if (shown > kMostLiveLines)
    text += fmt::format("and {} more\n", count_text(shown - kMostLiveLines));
  text += fmt::format("{}: tensor {}, pipeline {}, data {}, expert {}\n", name_of(report.engine),
                      report.tp, report.pp, report.dp, report.ep);
  for (std::size_t s = 0; s < library::kLiveStates; ++s)
    text += state_text(report, static_cast<LiveState>(s));
  if (report.n_drafts > 0)
    text += fmt::format("not compared   {} parameters of drafts\n", count_text(report.n_drafts));
  const std::uint64_t equal = report.bytes(LiveState::kEqual) + report.bytes(LiveState::kLearned);
  std::uint64_t all = 0;
  for (const LiveRow& row : report.rows) all += row.n_bytes;
  return text +
         fmt::format("{} of {} are those of the files\n", bytes_text(equal), bytes_text(all));
}

Json live_json(const LiveReport& report) {
  Json states = Json::array(), rows = Json::array();
  for (std::size_t s = 0; s < library::kLiveStates; ++s) {
    const auto state = static_cast<LiveState>(s);
    states.push_back({{"state", std::string(library::live_state_name(state))},
                      {"count", report.count(state)},
                      {"bytes", report.bytes(state)}});
  }
  std::vector<const LiveRow*> order;
  for (const LiveRow& row : report.rows) order.push_back(&row);
  // First what a reader looks for, in case that the list is cut.
  const auto weight = [](const LiveRow* row) {
    return row->state == LiveState::kDiffers || row->state == LiveState::kMissing ? 0
           : row->state == LiveState::kEqual                                      ? 2
                                                                                  : 1;
  };
  std::ranges::stable_sort(order, {}, weight);
  for (const LiveRow* row : std::span(order).first(std::min(order.size(), kMostLiveRows))) {
    rows.push_back({{"rank", place_text(row->place)},
                    {"name", row->name},
                    {"state", std::string(library::live_state_name(row->state))},
                    {"fact", row->fact},
                    {"bytes", row->n_bytes}});
  }
  return {{"engine", name_of(report.engine)},
          {"tp", report.tp},
          {"pp", report.pp},
          {"dp", report.dp},
          {"ep", report.ep},
          {"drafts", report.n_drafts},
          {"states", std::move(states)},
          {"parameters", std::move(rows)}};
}

}  // namespace

void declare_live(FlagTable& table, LiveFlags& flags) {
  const auto of_live =
      belongs_to("--live or --live-answer", [&flags] { return flags.is_asked_for(); });
  const auto of_url = belongs_to("--live", [&flags] { return !flags.url.empty(); });
  table.add(
      FlagGroup::kComparison,
      {{"--live",
        &flags.url,
        "ask the engine at this address (http://127.0.0.1:8000) for the hashes of its loaded "
        "weights, "
        "and compare them with the files; a key comes from the variable INGOT_LIVE_TOKEN",
        {.excludes = {"--live-answer", "--engine", "--deep", "--source-of"}, .value_name = "URL"}},
       {"--live-answer",
        &flags.answer,
        "compare an answer that was fetched otherwise, or by LLM.collective_rpc, or the checksum.json "
        "of SGLang's presharded weights",
        {.excludes = {"--engine", "--deep", "--source-of"}, .kind = ValueKind::kFile}},
       {"--live-ep",
        &flags.ep,
        "ranks of expert parallelism: all of a stage, or 1 (default: what fits)",
        {.is_positive = true, .idle = of_live}},
       {"--gpu",
        &flags.gpu,
        "the card that it runs on, a100, l40s, h100, h200 or b200 (default: what fits any)",
        {.words = words_of(kCards, &CardRow::gpu), .idle = of_live}},
       {"--learn",
        &flags.learn,
        "keep these digests as those of a trusted start, for parameters that kernels pack",
        {.kind = ValueKind::kFile, .is_written = true, .idle = of_live}},
       {"--against",
        &flags.against,
        "compare with the digests of a trusted start, too",
        {.kind = ValueKind::kFile, .idle = of_live}},
       {"--allow-http",
        &flags.allow_http,
        "let --live name another host by plain HTTP, where anyone on the way may answer",
        {.idle = of_url}},
       {"--live-timeout",
        &flags.timeout_seconds,
        "seconds after which an answer comes too late (hashing 100 GB takes minutes)",
        {.is_positive = true, .idle = of_url}}});
}

bool passes_live_check(const LiveFlags& flags, const library::CheckOptions& of) {
  const std::optional<LiveCard> card = card_of(flags.gpu);
  if (!flags.learn.empty()) require_absent_file(flags.learn);
  std::optional<engines::LiveAnswer> trusted;
  if (!flags.against.empty()) {
    trusted = library::parse_learned(read_text_file(flags.against, engines::kMaxLiveBytes),
                                     flags.against.string());
  }
  const std::string where = flags.answer.empty() ? flags.url : flags.answer.string();
  const engines::LiveAnswer answered = engines::parse_live_answer(answer_text(flags), where);
  Progress progress(flags.progress, "hashing parameters");
  const LiveReport report = library::compare_live(
      answered,
      {.directory = of.directory,
       .family = of.family,
       .ep = flags.ep,
       .card = card,
       .trusted = std::move(trusted),
       .threads = threads_of(of.threads),
       .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }});
  progress.finish();
  if (!flags.learn.empty()) write_absent_file(flags.learn, library::learned_text(answered));
  answer().add({{"passed", report.passed()}, {"live", live_json(report)}});
  if (!answer().is_json) out() << live_text(report);
  return report.passed();
}

}  // namespace ingot::cli
