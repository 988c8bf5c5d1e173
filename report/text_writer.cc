#include <algorithm>

#include <fmt/format.h>

#include "formats/base/printable.h"
#include "report/document.h"
#include "report/figures.h"
#include "report/table_text.h"

// A text of a given length: tables and lists of remarks may be shortened, whose first rows are the
// most important. The longest gives up a row at a time, so that short ones stay whole.

namespace ingot {

namespace {

// A block, how many of its rows are shown, and how wide.
struct Shown {
  const Block* block = nullptr;
  std::size_t rows = 0, width = 0;
};

std::size_t size_of(const Block& block) {
  if (const auto* table = std::get_if<Table>(&block)) return table->rows.size();
  if (const auto* remarks = std::get_if<Remarks>(&block)) return remarks->size();
  return 0;
}

std::size_t least_of(const Block& block) {
  const auto* table = std::get_if<Table>(&block);
  return table == nullptr ? 1 : table->least_rows;
}

std::string remark_line(const Remark& remark) {
  return fmt::format(
      "{}: {}{}{}\n", remark.kind, remark.name.empty() ? "" : printable(remark.name) + ": ",
      printable_lines(remark.text), remark.id.empty() ? "" : fmt::format(" ({})", remark.id));
}

std::string text_of(const Shown& shown) {
  std::string text;
  if (const auto* paragraph = std::get_if<Paragraph>(shown.block)) {
    return wrapped_text((paragraph->is_note ? "  " : "") + printable_lines(paragraph->text) + "\n",
                        shown.width);
  }
  if (const auto* table = std::get_if<Table>(shown.block)) {
    text = table_text(*table, shown.width, shown.rows);
  } else if (const auto* remarks = std::get_if<Remarks>(shown.block)) {
    for (std::size_t i = 0; i < shown.rows; ++i)
      text += wrapped_text(remark_line((*remarks)[i]), shown.width);
  }
  if (const std::size_t left = size_of(*shown.block) - shown.rows; left > 0)
    text += fmt::format("  ... {} more (--worst N or --json)\n", count_text(left));
  return text;
}

// Blocks of a section that a text shows.
std::vector<Shown> shown_of(const std::vector<Block>& blocks, std::size_t width) {
  std::vector<Shown> shown;
  for (const Block& block : blocks) {
    const bool is_empty = std::holds_alternative<Drawing>(block) ||
                          (!std::holds_alternative<Paragraph>(block) && size_of(block) == 0);
    if (!is_empty) shown.push_back({.block = &block, .rows = size_of(block), .width = width});
  }
  return shown;
}

std::string text_of(const std::vector<std::vector<Shown>>& sections) {
  std::string text;
  for (const std::vector<Shown>& section : sections) {
    if (!text.empty()) text += "\n";
    for (const Shown& shown : section) text += text_of(shown);
  }
  return text;
}

std::size_t lines_of(const Shown& shown) {
  const std::string text = text_of(shown);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void shorten(std::vector<std::vector<Shown>>& sections, std::size_t max_lines) {
  std::vector<std::pair<Shown*, std::size_t>> lengths;
  std::size_t n_lines = sections.empty() ? 0 : sections.size() - 1;
  for (std::vector<Shown>& section : sections) {
    for (Shown& shown : section) {
      lengths.emplace_back(&shown, lines_of(shown));
      n_lines += lengths.back().second;
    }
  }
  while (n_lines > max_lines) {
    const auto longest =
        std::max_element(lengths.begin(), lengths.end(), [](const auto& a, const auto& b) {
          const auto rows = [](const Shown& shown) {
            return shown.rows > least_of(*shown.block) ? shown.rows : 0;
          };
          return rows(*a.first) < rows(*b.first);
        });
    Shown& shown = *longest->first;
    if (shown.rows <= least_of(*shown.block)) return;
    // The first step only makes room for the line that says how many are left.
    const bool is_whole = shown.rows == size_of(*shown.block);
    const std::size_t spare = n_lines - max_lines + (is_whole ? 1 : 0);
    const std::size_t most = shown.rows - least_of(*shown.block);
    // Long lists in one step, to where the next one is as long.
    shown.rows -= std::clamp<std::size_t>(spare / lengths.size(), 1, most);
    const std::size_t length = lines_of(shown);
    n_lines = n_lines - longest->second + length;
    longest->second = length;
  }
}

}  // namespace

std::string write_text(const Document& document, std::size_t max_lines, std::size_t width) {
  // The head and the remarks are sections, too.
  std::vector<Block> head, foot = {document.remarks}, last;
  if (!document.finding.empty()) {
    head = {Paragraph{fmt::format("{}{}{}", document.verdict, document.verdict.empty() ? "" : ": ",
                                  document.finding)},
            Paragraph{document.subject}};
    if (width > 0 && !document.verdict.empty() && !document.sections.empty())
      last.push_back(head.front());
  }
  std::vector<std::vector<Shown>> sections = {shown_of(head, width)};
  for (const Section& section : document.sections)
    sections.push_back(shown_of(section.blocks, width));
  sections.push_back(shown_of(foot, width));
  sections.push_back(shown_of(last, width));
  std::erase_if(sections, [](const auto& section) { return section.empty(); });
  if (max_lines > 0) shorten(sections, max_lines);
  return text_of(sections);
}

Remarks remarks_of(std::string_view kind, const std::vector<std::string>& texts) {
  Remarks remarks;
  for (const std::string& text : texts)
    remarks.push_back({.kind = std::string(kind), .text = text});
  return remarks;
}

}  // namespace ingot
