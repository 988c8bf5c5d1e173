#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::verify {

/// The text as content or quoted attribute of HTML: escaped, printable_text().
std::string html_text(std::string_view text);

/// `<section id="..."><h2>title</h2>body</section>`; nothing when the body is empty. The title is
/// text, the body is HTML.
std::string html_section(std::string_view id, std::string_view title, std::string_view body);

/// A paragraph of small print; HTML.
std::string html_note(std::string_view html);

/// The HTML in a box that scrolls sideways when it is wider than the page.
std::string html_scroll(std::string_view html);

struct HtmlColumn {
  std::string title;
  bool is_number = false;  ///< right-aligned
  bool is_name = false;    ///< monospaced, broken anywhere
};
/// A table in a scrolling box. Cells are HTML; a row may be shorter than the columns.
std::string html_table(const std::vector<HtmlColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows);

/// A word with a sign and a colour of good, bad or neither.
std::string html_badge(std::string_view kind, std::string_view word);

}  // namespace ingot::verify
