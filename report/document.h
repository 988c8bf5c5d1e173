#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ingot {

/// How a word is set off, where a form can do that.
enum class Style : std::uint8_t {
  kPlain,
  kCode,
  kLabel,  ///< label of a row
  kFault,  ///< a number that should be 0
  kGood,
  kBad,
  kMild,
};

/// One field of a table. Line breaks separate entries of a list.
struct Cell {
  Cell(std::string words, Style how = Style::kPlain)  // NOLINT: a text is a cell
      : text(std::move(words)), style(how) {}
  Cell(std::string_view words) : text(words) {}  // NOLINT: likewise
  Cell(const char* words) : text(words) {}       // NOLINT: likewise

  std::string text;
  Style style = Style::kPlain;
};

struct Column {
  enum class Kind : std::uint8_t { kText, kNumber, kName };  ///< names are long
  Column(std::string heading, Kind of = Kind::kText)         // NOLINT: a title is a column of text
      : title(std::move(heading)), kind(of) {}
  Column(const char* heading) : title(heading) {}  // NOLINT: likewise

  std::string title;
  Kind kind = Kind::kText;
};
inline Column number(std::string title) {
  return {std::move(title), Column::Kind::kNumber};
}
inline Column name(std::string title) {
  return {std::move(title), Column::Kind::kName};
}

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  ///< the most important first
  std::size_t least_rows = 1;           ///< rows that stay, however short a text is to be
  std::string summary = {};             ///< summary of a table that a page folds away
  bool wraps = false;                   ///< a page breaks its words rather than be scrolled
  bool is_ruled = false;                ///< a text has a line below the titles
};

/// A remark: `error: NAME: TEXT (ID)`.
struct Remark {
  Style style = Style::kLabel;
  std::string kind, name, text, id;
};
using Remarks = std::vector<Remark>;
Remarks remarks_of(std::string_view kind, const std::vector<std::string>& texts);

struct Paragraph {
  std::string text;
  bool is_note = false;  ///< true: small print
};

/// A drawing that only a page can show, in HTML.
struct Drawing {
  std::string html;
};

using Block = std::variant<Paragraph, Table, Remarks, Drawing>;

struct Section {
  std::string id, title;  ///< heading in HTML; a text has titles in its first column
  std::vector<Block> blocks;

  void add(Block block) { blocks.push_back(std::move(block)); }
  /// A paragraph in small print.
  void note(std::string text) { add(Paragraph{std::move(text), true}); }
};

/// A report for people. Texts in it are as they were found; each writer escapes them for its form.
struct Document {
  std::string title = {};
  std::string verdict = {};  ///< "PASS"; empty: the document begins with its findings
  bool is_good = true;
  std::string finding = {}, subject = {};  ///< a sentence each, without full stop
  Remarks remarks = {};
  std::vector<Section> sections = {};
  std::string made_by = {};
};

/// Lines for a terminal, printable, of `width` columns (0: any): tables by table_text(), all else
/// by wrapped_text(). When there are more than `max_lines`, the longest tables and lists show their
/// first rows and how many are left; 0: no limit. With a width, which is a screen's, the verdict is
/// also the last line.
std::string write_text(const Document& document, std::size_t max_lines, std::size_t width = 0);
/// Markdown in which no text is read as markup.
std::string write_markdown(const Document& document);
std::string markdown_table(const Table& table);
/// One self-contained page: inline SVG and style, no script and nothing fetched, light and dark.
std::string write_html(const Document& document);

/// The size of a screen: lines, and worst tensors, unless more is asked for.
inline constexpr std::size_t kScreenLines = 40;
inline constexpr std::size_t kScreenWorst = 5;

/// The text on one line, with nothing in it that Markdown or HTML would read.
std::string markdown_text(std::string_view text);
/// The text as content or quoted attribute of HTML: escaped, valid_text().
std::string html_text(std::string_view text);
/// The HTML in a box that scrolls sideways when it is wider than the page.
std::string html_scroll(std::string_view html);
/// A word with a sign and a colour of kGood, kBad or kMild.
std::string html_badge(Style style, std::string_view word);

}  // namespace ingot
