#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/printable.h"
#include "report/document.h"
#include "report/figures.h"
#include "report/page_style.h"

namespace ingot {
namespace {

constexpr std::size_t kMostRemarks = 200;

// A name of a tensor may break behind each of its dots.
std::string name_html(std::string_view name) {
  std::string html;
  for (const char c : html_text(name)) {
    html += c;
    if (c == '.') html += "<wbr/>";
  }
  return html;
}

std::string styled(Style style, std::string_view text) {
  switch (style) {
    case Style::kPlain:
      return html_text(text);
    case Style::kCode:
      return fmt::format("<code>{}</code>", name_html(text));
    case Style::kLabel:
      return fmt::format("<b>{}</b>", html_text(text));
    case Style::kFault:
      return fmt::format("<b class=\"bad-text\">{}</b>", html_text(text));
    default:
      return html_badge(style, text);
  }
}

// Returns the HTML of a cell, with each entry of a list on a line of its own.
std::string cell_html(const Cell& cell, Column::Kind kind) {
  const bool is_name = kind == Column::Kind::kName && cell.style == Style::kPlain;
  std::string html = is_name ? name_html(cell.text) : styled(cell.style, cell.text);
  for (std::size_t at = html.find('\n'); at != std::string::npos; at = html.find('\n', at))
    html.replace(at, 1, "<br/>");
  return html;
}

// The CSS class of a column's cells.
std::string_view class_of(Column::Kind kind) {
  constexpr std::array kClasses = {"", " class=\"n\"", " class=\"name\""};
  return kClasses.at(static_cast<std::size_t>(kind));
}

std::string written(const Paragraph& paragraph) {
  return fmt::format("<p{}>{}</p>\n", paragraph.is_note ? " class=\"note\"" : "",
                     html_text(paragraph.text));
}

std::string written(const Table& table) {
  if (table.rows.empty()) return {};
  std::string text = fmt::format("<table{}>\n<thead><tr>", table.wraps ? " class=\"wraps\"" : "");
  for (const Column& column : table.columns) {
    const bool is_number = column.kind == Column::Kind::kNumber;
    text += fmt::format("<th scope=\"col\"{}>{}</th>", is_number ? class_of(column.kind) : "",
                        html_text(column.title));
  }
  text += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : table.rows) {
    text += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      text += fmt::format("<td{}>{}</td>", class_of(table.columns[c].kind),
                          cell_html(row[c], table.columns[c].kind));
    text += "</tr>\n";
  }
  text += "</tbody>\n</table>\n";
  const std::string html = table.wraps ? text : html_scroll(text);
  if (table.summary.empty()) return html;
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", html_text(table.summary),
                     html);
}

std::string written(const Remarks& remarks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(remarks.size(), kMostRemarks); ++i) {
    const Remark& remark = remarks[i];
    text += fmt::format(
        "<li>{} {}{}{}</li>\n", styled(remark.style, remark.kind),
        remark.name.empty() ? "" : styled(Style::kCode, remark.name) + " ", html_text(remark.text),
        remark.id.empty() ? "" : fmt::format(" <small>{}</small>", html_text(remark.id)));
  }
  if (remarks.size() > kMostRemarks)
    text += fmt::format("<li>and {} more</li>\n", count_text(remarks.size() - kMostRemarks));
  return text.empty() ? text : fmt::format("<ul class=\"findings\">\n{}</ul>\n", text);
}

std::string written(const Drawing& drawing) {
  return drawing.html;
}

std::string header(const Document& document) {
  const std::string_view kind = document.verdict.empty() ? "mild"
                                : document.is_good       ? "good"
                                                         : "bad";
  std::string verdict;
  if (!document.verdict.empty()) {
    verdict = fmt::format("<p class=\"verdict\">{} {}</p>\n", document.is_good ? "✓" : "✗",
                          html_text(document.verdict));
  }
  return fmt::format(
      "<header id=\"verdict\" class=\"{}\">\n{}<div>\n<h1>{}.</h1>\n<p>{}.</p>\n{}</div>\n"
      "</header>\n",
      kind, verdict, html_text(document.finding), html_text(document.subject),
      written(document.remarks));
}

}  // namespace

std::string html_text(std::string_view text) {
  constexpr std::string_view kMarkup = "&<>\"'";
  constexpr std::array kEscaped = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : valid_text(text)) {
    const std::size_t at = kMarkup.find(c);
    if (at == std::string_view::npos) {
      out += c;
    } else {
      out += kEscaped[at];
    }
  }
  return out;
}

std::string html_scroll(std::string_view html) {
  return fmt::format("<div class=\"scroll\">\n{}</div>\n", html);
}

std::string html_badge(Style style, std::string_view word) {
  std::string_view kind = "mild", sign;
  if (style == Style::kGood) kind = "good", sign = "✓ ";
  if (style == Style::kBad) kind = "bad", sign = "✗ ";
  return fmt::format("<span class=\"badge {}\">{}{}</span>", kind, sign, html_text(word));
}

std::string write_html(const Document& document) {
  // An icon of nothing keeps browsers from asking a server for one.
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n"
      "<title>{}{}{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}",
      html_text(document.verdict), document.verdict.empty() ? "" : ": ", html_text(document.title),
      kPageStyle, header(document));
  for (const Section& section : document.sections) {
    std::string blocks;
    for (const Block& block : section.blocks)
      blocks += std::visit([](const auto& it) { return written(it); }, block);
    if (blocks.empty()) continue;
    page += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", section.id,
                        html_text(section.title), blocks);
  }
  return page + fmt::format("</main>\n<footer>{}</footer>\n</body>\n</html>\n",
                            html_text(document.made_by));
}

}  // namespace ingot
