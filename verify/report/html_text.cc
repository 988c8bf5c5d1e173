#include "verify/report/html_text.h"

#include <fmt/format.h>

#include "verify/report/figures.h"

namespace ingot::verify {

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : printable_text(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_section(std::string_view id, std::string_view title, std::string_view body) {
  if (body.empty()) return {};
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, html_text(title),
                     body);
}

std::string html_note(std::string_view html) {
  return fmt::format("<p class=\"note\">{}</p>\n", html);
}

std::string html_scroll(std::string_view html) {
  return fmt::format("<div class=\"scroll\">\n{}</div>\n", html);
}

std::string html_table(const std::vector<HtmlColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows) {
  const auto style = [&](std::size_t column) -> std::string_view {
    if (column >= columns.size()) return "";
    if (columns[column].is_number) return " class=\"n\"";
    return columns[column].is_name ? " class=\"name\"" : "";
  };
  std::string text = "<table>\n<thead><tr>";
  for (std::size_t c = 0; c < columns.size(); ++c) {
    text += fmt::format("<th scope=\"col\"{}>{}</th>", columns[c].is_number ? style(c) : "",
                        html_text(columns[c].title));
  }
  text += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    text += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      text += fmt::format("<td{}>{}</td>", style(c), row[c]);
    text += "</tr>\n";
  }
  return html_scroll(text + "</tbody>\n</table>\n");
}

std::string html_badge(std::string_view kind, std::string_view word) {
  const std::string_view sign = kind == "good" ? "✓ " : kind == "bad" ? "✗ " : "";
  return fmt::format("<span class=\"badge {}\">{}{}</span>", kind, sign, html_text(word));
}

}  // namespace ingot::verify
