#include "cli/quality_text.h"

#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "cli/terminal.h"

namespace ingot::cli {

using convert::QualityReport;
using formats::Json;
using quantize::QualitySums;

namespace {

std::string decibel_text(double sqnr) {
  return std::isfinite(sqnr) ? fmt::format("{:.2f}", sqnr) : "exact";
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::vector<std::string> figures(const QualitySums& sums) {
  return {fmt::format("{:.6f}", sums.relative_error()),
          decibel_text(sums.sqnr_db()),
          fmt::format("{:.6f}", sums.cosine()),
          fmt::format("{:.3g}", sums.max_error),
          fmt::format("{:.3f}%", share(sums.saturated, sums.elements)),
          fmt::format("{:.3f}%", share(sums.zeroed, sums.elements)),
          fmt::format("{} of {}", with_commas(sums.exact_blocks), with_commas(sums.blocks))};
}

Json figures_json(const QualitySums& sums) {
  const double sqnr = sums.sqnr_db();
  return {{"elements", sums.elements},
          {"relative_error", sums.relative_error()},
          {"sqnr_db", std::isfinite(sqnr) ? Json(sqnr) : Json(nullptr)},
          {"cosine", sums.cosine()},
          {"max_error", sums.max_error},
          {"saturated", sums.saturated},
          {"zeroed", sums.zeroed},
          {"blocks", sums.blocks},
          {"exact_blocks", sums.exact_blocks}};
}

const std::vector<std::string> kFigures = {"rel. error", "SQNR dB", "cosine",      "max error",
                                           "saturated",  "zeroed",  "exact blocks"};

}  // namespace

std::string quality_text(const QualityReport& report) {
  if (report.empty()) return "";
  std::string text;
  if (!report.rows.empty()) {
    std::vector<std::vector<std::string>> table = {{"scheme", "role", "tensors"}};
    table[0].insert(table[0].end(), kFigures.begin(), kFigures.end());
    for (const QualityReport::Row& row : report.rows) {
      table.push_back({std::string(formats::scheme_facts(row.scheme).name), row.role,
                       with_commas(row.n_tensors)});
      const std::vector<std::string> cells = figures(row.sums);
      table.back().insert(table.back().end(), cells.begin(), cells.end());
    }
    text += "error against the source's values\n" +
            text_table(table, {false, false, true, true, true, true, true, true, true, true});
    text += fmt::format(
        "blocks: {} exact, {} rounded; {} tensors rounded twice (quantized in the "
        "source, and again)\n",
        with_commas(report.exact_blocks), with_commas(report.rounded_blocks),
        with_commas(report.rounded_twice));
    table = {{"worst tensors", "scheme"}};
    table[0].insert(table[0].end(), kFigures.begin(), kFigures.end());
    for (const QualityReport::Worst& worst : report.worst) {
      table.push_back({worst.tensor, std::string(formats::scheme_facts(worst.scheme).name)});
      const std::vector<std::string> cells = figures(worst.sums);
      table.back().insert(table.back().end(), cells.begin(), cells.end());
    }
    if (!report.worst.empty())
      text += text_table(table, {false, false, true, true, true, true, true, true, true});
  }
  if (report.inexact_globals > 0) {
    text += fmt::format(
        "{} global scales are reciprocals that do not turn back exactly (off by one "
        "unit in the last place)\n",
        with_commas(report.inexact_globals));
  }
  return text;
}

Json quality_json(const QualityReport& report) {
  Json json = {{"rows", Json::array()},
               {"worst", Json::array()},
               {"exact_blocks", report.exact_blocks},
               {"rounded_blocks", report.rounded_blocks},
               {"tensors_rounded_twice", report.rounded_twice},
               {"inexact_globals", report.inexact_globals}};
  for (const QualityReport::Row& row : report.rows) {
    Json entry = {{"scheme", formats::scheme_facts(row.scheme).name},
                  {"role", row.role},
                  {"tensors", row.n_tensors}};
    entry.update(figures_json(row.sums));
    json["rows"].push_back(std::move(entry));
  }
  for (const QualityReport::Worst& worst : report.worst) {
    Json entry = {{"tensor", worst.tensor}, {"scheme", formats::scheme_facts(worst.scheme).name}};
    entry.update(figures_json(worst.sums));
    json["worst"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace ingot::cli
