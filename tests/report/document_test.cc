#include "report/document.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace ingot {
namespace {

TEST(WriteText, LongestTableGivesUpRowsFirst) {
  Table longer{.columns = {"long"}}, table{.columns = {"short"}};
  for (int i = 0; i < 9; ++i) longer.rows.push_back({std::to_string(i)});
  table.rows = {{"a"}, {"b"}};
  const Document document{.sections = {{"", "", {longer, table}}}};
  EXPECT_EQ(write_text(document, 8),
            "  long\n  0\n  1\n  2\n  ... 6 more (--worst N or --json)\n  short\n  a\n  b\n");
  const std::string whole = write_text(document, 0);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 13);
}

TEST(WriteHtml, NamesMayBreakBehindDots) {
  const Table table{.columns = {name("tensor"), "text"},
                    .rows = {{"model.norm.weight", "no name. here"}}};
  const std::string html =
      write_html({.sections = {{"", "", {table, Remarks{{.name = "a.b", .text = "c.d"}}}}}});
  EXPECT_NE(html.find(">model.<wbr/>norm.<wbr/>weight<"), std::string::npos) << html;
  EXPECT_NE(html.find("<code>a.<wbr/>b</code> c.d"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>no name. here</td>"), std::string::npos) << html;
}

TEST(Markdown, EscapesWhatWouldBeReadAsMarkup) {
  EXPECT_EQ(markdown_text("a|b __c__ [d] *e* <f>"), "a\\|b \\_\\_c\\_\\_ \\[d\\] \\*e\\* &lt;f>");
}

}  // namespace
}  // namespace ingot
