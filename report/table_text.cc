#include "report/table_text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "formats/base/printable.h"
#include "formats/base/words.h"

namespace ingot {
namespace {

constexpr std::size_t kLeastCell = 10;
constexpr std::string_view kGap = "  ";  // gap before every column

// Characters, not bytes.
std::size_t columns_of(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues_character));
}

// So much of a word as fits, and where it can be, up to a sign within it.
std::size_t bytes_that_fit(std::string_view word, std::size_t width) {
  constexpr std::string_view kSigns = "/.,_-=|";
  std::size_t n = 0, columns = 0, after_sign = 0;
  while (n < word.size()) {
    std::size_t next = n + 1;
    while (next < word.size() && continues_character(word[next])) ++next;
    if (++columns > width) break;
    n = next;
    if (kSigns.find(word[n - 1]) != std::string_view::npos) after_sign = n;
  }
  return after_sign > 0 && n < word.size() ? after_sign : n;
}

using Cells = std::vector<std::string>;

// The columns of a row, with the gaps before its cells.
std::size_t columns_of(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap.size() * widths.size());
}

// The widest column of texts gives until all fit, or none has more to give.
std::vector<std::size_t> column_widths(const Table& table, const std::vector<Cells>& rows,
                                       std::size_t width) {
  std::vector<std::size_t> widths(table.columns.size(), 0), left;
  for (const Cells& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], columns_of(row[c]));
  }
  for (std::size_t c = 0; c < widths.size(); ++c)
    if (table.columns[c].kind != Column::Kind::kNumber) left.push_back(c);
  if (width == 0 || left.empty()) return widths;
  while (columns_of(widths) > width) {
    const auto widest =
        std::ranges::max_element(left, {}, [&](std::size_t c) { return widths[c]; });
    if (widths[*widest] <= kLeastCell) break;
    --widths[*widest];
  }
  return widths;
}

std::string line_of(const Table& table, const Cells& cells,
                    const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    const std::string padding(widths[c] - columns_of(cells[c]), ' ');
    const bool is_number = table.columns[c].kind == Column::Kind::kNumber;
    line.append(kGap).append(is_number ? padding + cells[c] : cells[c] + padding);
  }
  return line.erase(line.find_last_not_of(' ') + 1) + "\n";
}

// A row as a line for each of its cells that says something, behind its title.
std::string record_of(const Cells& titles, const Cells& row, std::size_t width) {
  std::size_t widest = 0;
  for (const std::string& title : titles) widest = std::max(widest, columns_of(title));
  const std::size_t behind = widest + 2 * kGap.size();
  std::string text;
  for (std::size_t c = 0; c < row.size(); ++c) {
    if (row[c].empty() || row[c] == "-") continue;
    std::string title = titles[c];
    for (const std::string& line :
         filled_lines(row[c], std::max(width, 2 * behind) - behind, LongWords::kCut)) {
      text.append(kGap).append(title).append(widest - columns_of(title), ' ');
      text.append(kGap).append(line).append("\n");
      title.clear();
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> filled_lines(std::string_view text, std::size_t width,
                                      LongWords long_words) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    while (long_words == LongWords::kCut && columns_of(word) > width) {
      if (!line.empty()) lines.push_back(std::exchange(line, {}));
      const std::size_t n = bytes_that_fit(word, width);
      lines.emplace_back(word.substr(0, n));
      word.remove_prefix(n);
    }
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > width) {
      lines.push_back(std::exchange(line, {}));
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string table_text(const Table& table, std::size_t width, std::size_t n_rows) {
  std::vector<Cells> rows(1);
  for (const Column& column : table.columns) rows.front().push_back(column.title);
  if (std::ranges::all_of(rows.front(), &std::string::empty)) rows.clear();
  const std::size_t n_titles = rows.size();
  for (std::size_t r = 0; r < std::min(n_rows, table.rows.size()); ++r) {
    Cells& row = rows.emplace_back();
    for (const Cell& cell : table.rows[r]) {
      std::string text = cell.text;
      std::ranges::replace(text, '\n', ';');
      row.push_back(printable(text));
    }
  }
  const std::vector<std::size_t> widths = column_widths(table, rows, width);
  std::string text;
  const auto is_number = [](const Column& column) { return column.kind == Column::Kind::kNumber; };
  if (width > 0 && columns_of(widths) > width && n_titles > 0 &&
      std::ranges::none_of(table.columns, is_number)) {
    for (std::size_t r = 1; r < rows.size(); ++r)
      text += (r == 1 ? "" : "\n") + record_of(rows.front(), rows[r], width);
    return text;
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::vector<Cells> lines;
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const Cells filled = columns_of(rows[r][c]) <= widths[c]
                               ? Cells{rows[r][c]}
                               : filled_lines(rows[r][c], widths[c], LongWords::kCut);
      lines.resize(std::max(lines.size(), filled.size()), Cells(rows[r].size()));
      for (std::size_t i = 0; i < filled.size(); ++i) lines[i][c] = filled[i];
    }
    if (r + 1 == n_titles && table.is_ruled) {
      Cells& rule = lines.emplace_back();
      for (const std::size_t n : widths) rule.emplace_back(n, '-');
    }
    for (const Cells& line : lines) text += line_of(table, line, widths);
  }
  return text;
}

}  // namespace ingot
