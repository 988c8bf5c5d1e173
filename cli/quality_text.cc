#include "cli/quality_text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "formats/json/json.h"

namespace ingot::cli {

using convert::QualityReport;
using formats::Json;
using quantize::QualitySums;
using verify::number;
using verify::Paragraph;
using verify::Table;

namespace {

std::string scheme_name(formats::SchemeId scheme) {
  return std::string(formats::scheme_facts(scheme).name);
}

// A table whose first columns are given and that ends with the figures of QualitySums.
Table table_of(std::vector<verify::Column> columns) {
  for (const char* title :
       {"rel. error", "SQNR dB", "cosine", "max error", "saturated", "zeroed", "exact blocks"})
    columns.push_back(number(title));
  return {.columns = std::move(columns)};
}

void add_row(std::vector<verify::Cell> row, const QualitySums& sums, Table& table) {
  row.insert(row.end(),
             {short_text(sums.relative_error()), decibel_text(sums.sqnr_db()),
              cosine_text(sums.cosine()), short_text(sums.max_error),
              share_text(sums.saturated, sums.elements), share_text(sums.zeroed, sums.elements),
              fmt::format("{} of {}", count_text(sums.exact_blocks), count_text(sums.blocks))});
  table.rows.push_back(std::move(row));
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

}  // namespace

verify::Section quality_section(const QualityReport& report, std::size_t n_worst) {
  verify::Section section{"quality", "Error against the source's values", {}};
  if (!report.rows.empty()) {
    Table table = table_of({"quantized", "role", number("tensors")});
    for (const QualityReport::Row& row : report.rows)
      add_row({scheme_name(row.scheme), row.role, count_text(row.n_tensors)}, row.sums, table);
    Table worst = table_of({"worst tensors", "scheme"});
    worst.least_rows = verify::kScreenWorst;
    for (std::size_t i = 0; i < std::min(n_worst, report.worst.size()); ++i) {
      const QualityReport::Worst& tensor = report.worst[i];
      add_row({tensor.tensor, scheme_name(tensor.scheme)}, tensor.sums, worst);
    }
    section.blocks = {
        std::move(table),
        Paragraph{fmt::format("blocks: {} exact, {} rounded; {} tensors rounded twice "
                              "(quantized in the source, and again)",
                              count_text(report.exact_blocks), count_text(report.rounded_blocks),
                              count_text(report.rounded_twice))},
        std::move(worst)};
  }
  if (report.inexact_globals > 0) {
    section.blocks.push_back(
        Paragraph{fmt::format("{} global scales are reciprocals that do not turn back exactly (off "
                              "by one unit in the last "
                              "place)",
                              count_text(report.inexact_globals))});
  }
  return section;
}

Json quality_json(const QualityReport& report) {
  Json json = {{"rows", Json::array()},
               {"worst", Json::array()},
               {"exact_blocks", report.exact_blocks},
               {"rounded_blocks", report.rounded_blocks},
               {"tensors_rounded_twice", report.rounded_twice},
               {"inexact_globals", report.inexact_globals}};
  for (const QualityReport::Row& row : report.rows) {
    Json entry = {
        {"scheme", scheme_name(row.scheme)}, {"role", row.role}, {"tensors", row.n_tensors}};
    entry.update(figures_json(row.sums));
    json["rows"].push_back(std::move(entry));
  }
  for (const QualityReport::Worst& worst : report.worst) {
    Json entry = {{"tensor", worst.tensor}, {"scheme", scheme_name(worst.scheme)}};
    entry.update(figures_json(worst.sums));
    json["worst"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace ingot::cli
