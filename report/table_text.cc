#include "report/table_text.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/printable.h"
#include "formats/base/words.h"

namespace ingot {
namespace {

constexpr std::size_t kLeastCell = 10;
// A table with numbers keeps so many columns, so many of them with numbers, and leaves texts of so
// few columns out rather than fill them.
constexpr std::size_t kLeastColumns = 3, kLeastNumbers = 2, kShortText = 20;
constexpr std::string_view kGap = "  ";  // gap before every column

// Characters, not bytes, and no marks of a terminal, which no UTF-8 has.
std::size_t columns_of(std::string_view text) {
  const auto has_none = [](char c) {
    return continues_character(c) || static_cast<unsigned char>(c) >= 0xF8;
  };
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, has_none));
}

// The first characters of a text.
std::string_view first_columns(std::string_view text, std::size_t n) {
  std::size_t end = 0;
  while (end < text.size() && (n > 0 || continues_character(text[end])))
    if (!continues_character(text[end++])) --n;
  return text.substr(0, end);
}

// A word of so many columns: of a longer one the beginning and the end.
std::string shortened(std::string_view word, std::size_t width) {
  constexpr std::string_view kLeftOut = "...";
  const std::size_t columns = columns_of(word);
  if (columns <= width) return std::string(word);
  const std::size_t kept = std::max(width, kLeftOut.size()) - kLeftOut.size(), before = kept / 2;
  const std::size_t end = first_columns(word, columns - (kept - before)).size();
  return std::string(first_columns(word, before)).append(kLeftOut).append(word.substr(end));
}

// Columns of the longest word.
std::size_t longest_word(std::string_view text) {
  std::size_t longest = 0;
  for (const std::string& word : filled_lines(text, 0))
    longest = std::max(longest, columns_of(word));
  return longest;
}

using Cells = std::vector<std::string>;

// The columns of a row, with the gaps before its cells.
std::size_t columns_of(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap.size() * widths.size());
}

bool is_number(const Column& column) {
  return column.kind == Column::Kind::kNumber;
}

// The widest column of texts gives until all fit, or none has more to give: its longest word or
// kShortText, or kLeastCell if words may be shortened.
std::vector<std::size_t> column_widths(const std::vector<Column>& columns,
                                       const std::vector<Cells>& rows, std::size_t width,
                                       bool may_shorten) {
  const std::size_t unfilled = std::ranges::any_of(columns, is_number) ? kShortText : 0;
  std::vector<std::size_t> widths(columns.size(), 0), least(columns.size(), 0);
  for (const Cells& row : rows) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t whole = columns_of(row[c]);
      widths[c] = std::max(widths[c], whole);
      const std::size_t needed = is_number(columns[c]) ? whole
                                 : may_shorten
                                     ? std::min(longest_word(row[c]), kLeastCell)
                                     : std::max(longest_word(row[c]), std::min(whole, unfilled));
      least[c] = std::max(least[c], needed);
    }
  }
  while (width > 0 && columns_of(widths) > width) {
    std::size_t widest = columns.size();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (widths[c] > least[c] && (widest == columns.size() || widths[c] > widths[widest]))
        widest = c;
    }
    if (widest == columns.size()) break;
    --widths[widest];
  }
  return widths;
}

std::string line_of(const std::vector<Column>& columns, const Cells& cells,
                    const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::string padding(widths[c] - columns_of(cells[c]), ' ');
    line.append(kGap).append(is_number(columns[c]) ? padding + cells[c] : cells[c] + padding);
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
    for (const std::string& line : filled_lines(row[c], std::max(width, 2 * behind) - behind)) {
      text.append(kGap).append(title).append(widest - columns_of(title), ' ');
      text.append(kGap).append(line).append("\n");
      title.clear();
    }
  }
  return text;
}

// The words that a cell's lines hold.
Cells cell_lines(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width) return {text};
  Cells lines = filled_lines(text, width);
  for (std::string& line : lines) line = shortened(line, width);
  return lines;
}

// True for the beginning of a command of a shell.
bool is_command(std::string_view text) {
  constexpr std::array<std::string_view, 8> kPrograms = {
      "hf", "ingot", "jq", "mpirun", "python", "source", "trtllm-serve", "vllm"};
  // A program may be called by its path.
  std::string_view program = text.substr(0, text.find(' '));
  program.remove_prefix(program.rfind('/') + 1);
  return program.size() < text.size() && std::ranges::find(kPrograms, program) != kPrograms.end();
}

// A text behind a head, its further lines as far in as `hang`.
std::string filled_behind(std::string_view head, std::string_view text, std::size_t hang,
                          std::size_t width) {
  return fmt::format("{}{}\n", head,
                     fmt::join(filled_lines(text, std::max(width, 2 * hang) - hang),
                               "\n" + std::string(hang, ' ')));
}

std::string wrapped_line(std::string_view line, std::size_t width) {
  constexpr std::size_t kIndent = 2;
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = std::min(line.find(kGap, indent), line.size());
  const std::size_t second = std::min(line.find_first_not_of(' ', gap), line.size());
  const std::string_view first = line.substr(0, gap), rest = line.substr(second);
  if (is_command(line.substr(indent))) {
    const std::size_t hang = indent + 2 * kIndent;
    return rest.empty() ? std::string(line) + "\n"
                        : filled_behind(std::string(first) + "\n" + std::string(hang, ' '), rest,
                                        hang, width);
  }
  if (is_command(rest)) return fmt::format("{}\n{:{}}{}\n", first, "", indent + kIndent, rest);
  const std::string_view label = line.substr(0, second);
  if (!rest.empty() && columns_of(label) <= width / 2)
    return filled_behind(label, rest, columns_of(label), width);
  return filled_behind(line.substr(0, indent), line.substr(indent), indent + kIndent, width);
}

}  // namespace

std::vector<std::string> filled_lines(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > width) {
      lines.push_back(std::exchange(line, {}));
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string wrapped_text(std::string_view text, std::size_t width) {
  std::string all;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (width == 0 || columns_of(line) <= width) {
      all.append(text.substr(0, end + 1));
    } else {
      all += wrapped_line(line, width);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
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
    row.resize(table.columns.size());
  }
  std::vector<Column> columns = table.columns;
  std::vector<std::size_t> widths = column_widths(columns, rows, width, false);
  const auto is_too_wide = [&] { return width > 0 && columns_of(widths) > width; };
  std::string text;
  if (is_too_wide() && n_titles > 0 && std::ranges::none_of(columns, is_number)) {
    for (std::size_t r = 1; r < rows.size(); ++r)
      text += (r == 1 ? "" : "\n") + record_of(rows.front(), rows[r], width);
    return text;
  }
  while (is_too_wide() && n_titles > 0 && columns.size() > kLeastColumns) {
    const auto n_numbers = static_cast<std::size_t>(std::ranges::count_if(columns, is_number));
    if (is_number(columns.back()) && n_numbers <= kLeastNumbers) break;
    columns.pop_back();
    widths = column_widths(columns, rows, width, false);
  }
  if (is_too_wide()) widths = column_widths(columns, rows, width, true);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::vector<Cells> lines;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Cells filled = cell_lines(rows[r][c], widths[c]);
      lines.resize(std::max(lines.size(), filled.size()), Cells(rows[r].size()));
      for (std::size_t i = 0; i < filled.size(); ++i) lines[i][c] = filled[i];
    }
    if (r + 1 == n_titles && table.is_ruled) {
      Cells& rule = lines.emplace_back();
      for (const std::size_t n : widths) rule.emplace_back(n, '-');
    }
    for (const Cells& line : lines) text += line_of(columns, line, widths);
  }
  if (columns.size() < table.columns.size()) {
    const Cells left_out(rows.front().begin() + static_cast<std::ptrdiff_t>(columns.size()),
                         rows.front().end());
    text += wrapped_text(
        fmt::format("  no room in {} columns: {}\n", width, fmt::join(left_out, ", ")), width);
  }
  return text;
}

}  // namespace ingot
