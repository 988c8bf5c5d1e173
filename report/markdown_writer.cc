#include <fmt/format.h>

#include "formats/base/printable.h"
#include "report/document.h"
#include "report/figures.h"

namespace ingot {
namespace {

constexpr std::size_t kMostRows = 20;  // a model card is read, not searched

// A name in code style, where only characters that end it, or a cell, matter.
std::string code(std::string_view text) {
  std::string out;
  for (const char c : valid_text(text)) out += c == '`' || c == '\n' ? ' ' : c == '|' ? '/' : c;
  return "`" + out + "`";
}

std::string styled(Style style, std::string_view text) {
  if (text.empty()) return {};
  if (style == Style::kCode) return code(text);
  const bool is_strong = style == Style::kBad || style == Style::kFault;
  return is_strong ? fmt::format("**{}**", markdown_text(text)) : markdown_text(text);
}

std::string left_out(std::size_t n_rows) {
  if (n_rows <= kMostRows) return {};
  return fmt::format("- and {} more\n", count_text(n_rows - kMostRows));
}

std::string written(const Paragraph& paragraph) {
  return markdown_text(paragraph.text) + "\n\n";
}

std::string written(const Table& table) {
  if (table.rows.empty()) return {};
  Table shown = table;
  shown.rows.resize(std::min(table.rows.size(), kMostRows));
  return markdown_table(shown) + "\n" + left_out(table.rows.size());
}

std::string written(const Remarks& remarks) {
  if (remarks.empty()) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(remarks.size(), kMostRows); ++i) {
    const Remark& remark = remarks[i];
    text += fmt::format("- {}{} {}\n", styled(remark.style, remark.kind),
                        remark.name.empty() ? ":" : " " + code(remark.name) + ":",
                        markdown_text(remark.text));
  }
  return text + left_out(remarks.size()) + "\n";
}

std::string written(const Drawing& /*drawing*/) {
  return {};
}

}  // namespace

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kEscaped = "\\`*_[]|#";
  std::string out;
  for (const char c : valid_text(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '\n') {
      out += ' ';
    } else {
      if (kEscaped.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string markdown_table(const Table& table) {
  std::string titles = "|", rules = "|", rows;
  for (const Column& column : table.columns) {
    titles += fmt::format(" {} |", markdown_text(column.title));
    rules += column.kind == Column::Kind::kNumber ? "---:|" : "---|";
  }
  for (const std::vector<Cell>& row : table.rows) {
    rows += "|";
    for (const Cell& cell : row) rows += fmt::format(" {} |", styled(cell.style, cell.text));
    rows += "\n";
  }
  return titles + "\n" + rules + "\n" + rows;
}

std::string write_markdown(const Document& document) {
  std::string text = fmt::format("## {}{}{}\n\n{}.\n\n{}.\n\n", document.title,
                                 document.verdict.empty() ? "" : ": ", document.verdict,
                                 markdown_text(document.subject), markdown_text(document.finding));
  text += written(document.remarks);
  for (const Section& section : document.sections) {
    std::string blocks;
    for (const Block& block : section.blocks)
      blocks += std::visit([](const auto& it) { return written(it); }, block);
    if (!blocks.empty()) text += fmt::format("### {}\n\n{}", section.title, blocks);
  }
  return text + fmt::format("{}\n", markdown_text(document.made_by));
}

}  // namespace ingot
