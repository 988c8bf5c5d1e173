#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/json/json.h"
#include "report/document.h"

namespace ingot {

/// A row of a report is a JSON object: documents for programs have it as it is, and tables for
/// people are made of it.

/// The member of a row at `path`: a key, or keys with dots between them. Null where there is none,
/// the row itself for an empty path.
const formats::Json& member_at(const formats::Json& row, std::string_view path);

/// A row for each entry of a range, by its row_of().
template <typename Range>
formats::Json json_rows(const Range& range) {
  return formats::json_list(range, [](const auto& entry) { return row_of(entry); });
}

/// The value, or null without one.
template <typename Value>
formats::Json or_null(const std::optional<Value>& value) {
  return value ? formats::Json(*value) : formats::Json(nullptr);
}

/// A member as a table shows it: yes or no, a count, a text, or the entries of a list.
Cell shown(const formats::Json& member);
/// A member as a table shows it, in a style.
template <Style style>
Cell in_style(const formats::Json& member) {
  return {shown(member).text, style};
}
/// The entries of a list, or the first of them and how many more there are.
std::string first_of(const formats::Json& list, std::size_t most);

/// The text of a member: as shown(), one of figures.h, where null is "–", or any other cell.
using Print = std::variant<std::monostate, std::function<Cell(const formats::Json& member)>,
                           std::string (*)(double), std::string (*)(std::uint64_t)>;

/// A column of a table that is made of rows. Figures, and numbers as they are shown(), are aligned
/// to the right.
struct Field {
  Column column;
  std::string path = column.title;  ///< path of the members
  Print print = {};
  bool is_shown = true;  ///< false: the table has no such column
};

/// A table of the list of rows.
Table table_of(const formats::Json& rows, const std::vector<Field>& fields);

/// The report as a document holds it: texts are valid_text(), and numbers that are not finite null.
formats::Json as_document(formats::Json report);

}  // namespace ingot
