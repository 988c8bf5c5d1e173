// A summary for readers who do not read on: how large, which scheme became which, how close, which
// parts were judged.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/figures.h"
#include "report/rows.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

constexpr std::size_t kMostShownRoles = 6;

std::string shares_text(const CheckpointFacts& facts) {
  std::string text;
  for (const SchemeShare& share : facts.schemes) {
    const double percent = 100.0 * static_cast<double>(share.bytes) /
                           static_cast<double>(std::max<std::uint64_t>(facts.bytes, 1));
    if (percent < 0.5) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", share.scheme, percent);
  }
  return text;
}

std::string size_text(const Report& report) {
  const std::uint64_t n_bytes = report.output.bytes;
  if (!report.source || report.source->bytes == 0) return bytes_text(n_bytes);
  return fmt::format(
      "{}, {:.0f}%", bytes_text(n_bytes),
      100.0 * static_cast<double>(n_bytes) / static_cast<double>(report.source->bytes));
}

std::string weights_text(const Report& report) {
  if (!report.weights) return {};
  ElementSums all;
  std::size_t identical = 0;
  for (const TensorWeights& tensor : report.weights->tensors) {
    all.add(tensor.sums);
    identical += tensor.relation == Relation::kIdentical ? 1 : 0;
  }
  return fmt::format("{:.2f}%; {} of {} tensors unchanged", 100 * all.relative_error(),
                     count_text(identical), count_text(report.weights->tensors.size()));
}

const LogitAgreement* logits_of(const Report& report) {
  return report.layers && report.layers->logits.tokens > 0 ? &report.layers->logits : nullptr;
}

std::string kl_text(const Report& report) {
  const LogitAgreement* logits = logits_of(report);
  return logits == nullptr ? "" : fmt::format("{} nats", short_text(logits->mean_kl));
}

std::string text_kl_text(const Report& report) {
  if (!report.text || !report.text->source) return {};
  const TextFigure kl = kl_of(*report.text);
  std::string text = fmt::format("{} nats", short_text(kl.mean));
  if (kl.interval)
    text +=
        fmt::format(", 95% {} to {}", short_text(kl.interval->low), short_text(kl.interval->high));
  return text;
}

std::string top_text(const Report& report) {
  const LogitAgreement* logits = logits_of(report);
  return logits == nullptr ? ""
                           : fmt::format("{} of {} tokens", percent_text(logits->top1),
                                         count_text(logits->tokens));
}

std::string answers_text(const Report& report) {
  if (!report.greedy) return {};
  std::string text = fmt::format("{} of {}", report.greedy->equal, report.greedy->prompts.size());
  if (report.greedy->inconclusive > 0)
    text += fmt::format(", {} undecided", report.greedy->inconclusive);
  return text;
}

// Returns the source's perplexity of --text, else that of the prompts.
std::optional<double> source_perplexity(const Report& report) {
  if (report.text) {
    return report.text->source ? std::optional(report.text->source->perplexity()) : std::nullopt;
  }
  const LogitAgreement* logits = logits_of(report);
  const bool is_recorded = !report.source.has_value();
  return logits == nullptr || is_recorded ? std::nullopt
                                          : std::optional(std::exp(logits->source_nll));
}

std::string perplexity_text(const Report& report) {
  const std::optional<double> source = source_perplexity(report);
  if (!report.text && !source) return {};
  const double output =
      report.text ? report.text->output.perplexity() : std::exp(logits_of(report)->output_nll);
  if (!source) return fmt::format("{:.5f}", output);
  return fmt::format("{:.5f}, {:+.3f}%", output, 100 * (output / *source - 1));
}

std::string gates_text(const Report& report) {
  const auto passed = std::count_if(report.gates.begin(), report.gates.end(),
                                    [](const GateResult& result) { return result.passed; });
  return fmt::format("{} of {} passed", passed, report.gates.size());
}

std::string not_judged_text(const Report& report) {
  const Coverage coverage = coverage_of(report);
  std::vector<std::string> parts;
  for (const std::string& what : coverage.measured) parts.push_back(what + " (only measured)");
  parts.insert(parts.end(), coverage.not_judged.begin(), coverage.not_judged.end());
  for (const LevelFacts& level : levels()) {
    if (report.source &&
        std::find(report.levels.begin(), report.levels.end(), level.level) == report.levels.end())
      parts.push_back(fmt::format("level {} (not asked for)", level.name));
  }
  return parts.empty() ? "nothing: all that was compared has gates"
                       : fmt::format("{}", fmt::join(parts, "; "));
}

Table changes_table(const Summary& summary) {
  const bool is_difference = summary.sides.front().report->is_difference;
  Json rows = Json::array();
  for (const SummarySide& side : summary.sides) {
    for (const SchemeChange& change : side.report->changes) {
      rows.push_back(row_of(change));
      rows.back()["side"] = side.title;
    }
  }
  Table table = table_of(
      rows,
      {{"", "side", in_style<Style::kLabel>, summary.sides.size() > 1},
       change_field("weights"),
       {"tensors"},
       {is_difference ? "A" : "before", "source_bytes", bytes_text},
       {is_difference ? "B" : "after", "output_bytes", bytes_text},
       {"roles", "roles", [](const Json& roles) { return first_of(roles, kMostShownRoles); }}});
  table.wraps = true;
  return table;
}

}  // namespace

std::string change_text(std::string_view from, std::string_view to) {
  return from == to ? std::string(to) : fmt::format("{} → {}", from, to);
}

Field change_field(std::string title) {
  return {std::move(title), "", [](const Json& row) {
            return change_text(row.at("from").get<std::string>(), row.at("to").get<std::string>());
          }};
}

void add_summary_section(const Summary& summary, Sections& sections) {
  const Report& first = *summary.sides.front().report;
  Table table{.columns = {""}, .wraps = true};
  if (first.source) table.columns.emplace_back(std::string(summary.source_title));
  for (const SummarySide& side : summary.sides) table.columns.emplace_back(side.title);
  const auto add = [&](std::string_view title, std::string of_source, const auto& value) {
    std::vector<Cell> row = {Cell(std::string(title), Style::kLabel)};
    if (first.source) row.emplace_back(std::move(of_source));
    for (const SummarySide& side : summary.sides) row.emplace_back(value(*side.report));
    const bool has_any = std::any_of(row.begin() + (first.source ? 2 : 1), row.end(),
                                     [](const Cell& cell) { return !cell.text.empty(); });
    if (has_any) table.rows.push_back(std::move(row));
  };
  const CheckpointFacts source = first.source.value_or(CheckpointFacts{});
  add("checkpoint", source.name, [](const Report& report) { return report.output.name; });
  add("size", bytes_text(source.bytes), size_text);
  add("bytes are", shares_text(source),
      [](const Report& report) { return shares_text(report.output); });
  add(first.is_difference ? "difference of the weights" : "error of the weights", {}, weights_text);
  add("KL of the next token", {}, kl_text);
  add("same likeliest token", {}, top_text);
  add("KL of the text", {}, text_kl_text);
  const std::optional<double> perplexity = source_perplexity(first);
  add(first.text ? "perplexity of the text" : "perplexity of the prompts",
      perplexity ? fmt::format("{:.5f}", *perplexity) : "", perplexity_text);
  add("same answers", {}, answers_text);
  if (summary.is_judged) {
    add("gates", {}, gates_text);
    add("not judged", {}, not_judged_text);
  }
  sections.push_back({"summary", "In short", {std::move(table), changes_table(summary)}});
}

}  // namespace ingot::verify
