#include "cli/report/step_report.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "report/figures.h"
#include "report/report_file.h"

namespace ingot::cli {
namespace {

using formats::Json;
using Seconds = std::chrono::duration<double>;

Json seconds_json(const inference::StepFigures& of) {
  return {{"compute", of.compute_seconds},
          {"exchange", of.exchange_seconds},
          {"waiting", of.waiting_seconds}};
}

// Collectives of a layer first, by layer, then those of the whole step.
Json collectives_json(const inference::TrafficByCollective& traffic,
                      const inference::TrafficByCollective& before) {
  Json list = Json::array();
  for (const auto& [what, now] : traffic) {
    const auto found = before.find(what);
    const inference::Traffic then = found == before.end() ? inference::Traffic{} : found->second;
    if (now.n_meetings == then.n_meetings) continue;
    Json entry = Json::object();
    if (what.layer != inference::Collective::kNoLayer) entry["layer"] = what.layer;
    entry["collective"] = std::string(what.name);
    entry["group"] = std::string(inference::group_name(what.group));
    entry["times"] = now.n_meetings - then.n_meetings;
    entry["messages"] = now.n_messages - then.n_messages;
    entry["bytes"] = now.n_bytes - then.n_bytes;
    entry["hidden_seconds"] = Seconds(now.hidden - then.hidden).count();
    entry["waited_seconds"] = Seconds(now.waited - then.waited).count();
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string traffic_summary(const inference::TrafficByCollective& traffic) {
  const inference::Traffic all = inference::total(traffic);
  const double waited = Seconds(all.waited).count(), hidden = Seconds(all.hidden).count();
  const double whole = waited + hidden;
  return fmt::format(
      "rank 0 sent {} in {} messages and waited {:.2f} s for other ranks; {:.0f}% of the time of "
      "exchanges was hidden by work",
      bytes_text(all.n_bytes), all.n_messages, waited, whole > 0 ? 100 * hidden / whole : 0.0);
}

std::string steps_text(const inference::StepTotals& steps) {
  std::string text =
      fmt::format("{} steps, at most {} answered at once", steps.number, steps.most_sequences);
  if (steps.preempted > 0) {
    text += fmt::format(", {} preempted and {} tokens recomputed", steps.preempted,
                        steps.recomputed_tokens);
  }
  if (steps.dummy > 0) text += fmt::format(", {} dummy steps of idle groups", steps.dummy);
  if (steps.imbalance > 1)
    text += fmt::format(", the busiest expert rank {:.2f} times the mean", steps.imbalance);
  return text;
}

Json steps_json(const inference::StepTotals& steps) {
  return {{"count", steps.number},         {"most_sequences", steps.most_sequences},
          {"preempted", steps.preempted},  {"recomputed_tokens", steps.recomputed_tokens},
          {"dummy", steps.dummy},          {"expert_imbalance", steps.imbalance},
          {"messages", steps.messages},    {"bytes", steps.bytes},
          {"seconds", seconds_json(steps)}};
}

StepLog::StepLog(std::filesystem::path path) : path_(std::move(path)) {
  require_report_place(path_, ReportForm::kStepLog);
  file_.open(path_);
  if (!file_) throw system_error(errno, "create", path_.string());
}

void StepLog::write_line(const Json& line) {
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) throw system_error(errno, "write", path_.string());
}

void StepLog::write(const inference::StepFigures& figures,
                    const inference::TrafficByCollective& traffic) {
  const double seconds =
      figures.compute_seconds + figures.exchange_seconds + figures.waiting_seconds;
  const auto n_tokens = static_cast<double>(figures.prompt_tokens + figures.answer_tokens);
  Json line = {{"step", figures.number},
               {"tokens",
                {{"prompt", figures.prompt_tokens},
                 {"answer", figures.answer_tokens},
                 {"recomputed", figures.recomputed_tokens}}},
               {"tokens_per_second", seconds > 0 ? n_tokens / seconds : 0.0},
               {"sequences", figures.sequences},
               {"waiting", figures.waiting},
               {"preempted", figures.preempted},
               {"cache", {{"tokens", figures.cached_tokens}, {"capacity", figures.cache_capacity}}},
               {"dummy", figures.dummy},
               {"expert_tokens", figures.expert_tokens},
               {"expert_imbalance", figures.imbalance},
               {"expert_bytes_read", figures.expert_bytes_read},
               {"messages", figures.messages},
               {"bytes", figures.bytes},
               {"seconds", seconds_json(figures)}};
  if (!traffic.empty()) line["collectives"] = collectives_json(traffic, before_);
  before_ = traffic;
  write_line(line);
}

void StepLog::write(const inference::StepTotals& steps) {
  write_line({{"steps", steps_json(steps)}});
}

}  // namespace ingot::cli
