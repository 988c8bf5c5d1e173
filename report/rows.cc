#include "report/rows.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "formats/text/list_text.h"
#include "report/figures.h"

namespace ingot {

using formats::Json;

namespace {

Cell printed(const Print& print, const Json& member) {
  if (print.index() == 0) return shown(member);
  if (const auto* cell = std::get_if<std::function<Cell(const Json&)>>(&print))
    return (*cell)(member);
  if (member.is_null()) return "–";
  if (const auto* figure = std::get_if<std::string (*)(double)>(&print)) return (*figure)(member);
  return std::get<std::string (*)(std::uint64_t)>(print)(member);
}

// A figure, or a number that is shown as it is.
bool is_number(const Field& field, const Json& rows) {
  if (field.print.index() != 0) return field.print.index() > 1;
  return !rows.empty() && member_at(rows.front(), field.path).is_number();
}

}  // namespace

const Json& member_at(const Json& row, std::string_view path) {
  if (path.empty()) return row;
  const std::size_t dot = path.find('.');
  const Json& member = formats::json_member(row, path.substr(0, dot));
  return dot == std::string_view::npos ? member : member_at(member, path.substr(dot + 1));
}

Cell shown(const Json& member) {
  if (member.is_null()) return "";
  if (member.is_boolean()) return member.get<bool>() ? "yes" : "no";
  if (member.is_number()) return count_text(member.get<std::uint64_t>());
  if (member.is_string()) return member.get<std::string>();
  return fmt::format("{}", fmt::join(member.get<std::vector<std::string>>(), ", "));
}

std::string first_of(const Json& list, std::size_t most) {
  return list_text(list.get<std::vector<std::string>>(), most);
}

Table table_of(const Json& rows, const std::vector<Field>& fields) {
  Table table;
  table.rows.resize(rows.size());
  for (const Field& field : fields) {
    if (!field.is_shown) continue;
    table.columns.push_back(field.column);
    if (is_number(field, rows)) table.columns.back().kind = Column::Kind::kNumber;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      table.rows[r].push_back(printed(field.print, member_at(rows[r], field.path)));
    }
  }
  return table;
}

Json as_document(Json report) {
  if (report.is_structured()) {
    for (Json& member : report) member = as_document(std::move(member));
  } else if (report.is_string()) {
    report = valid_text(report.get_ref<const std::string&>());
  } else if (report.is_number_float() && !std::isfinite(report.get<double>())) {
    report = nullptr;
  }
  return report;
}

}  // namespace ingot
