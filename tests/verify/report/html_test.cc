#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/svg.h"
#include "tests/verify/report/sample_report.h"

namespace ingot::verify {
namespace {

using namespace ingot::testing;
using namespace ::testing;

// Faults in the nesting, attributes and entities of a page; stricter than a browser, which mends
// everything. Empty when there are none.
std::string markup_fault(std::string_view page) {
  std::vector<std::string> open;
  std::set<std::string> ids;
  std::size_t at = page.find("<html");
  while (at < page.size()) {
    const std::size_t next = page.find_first_of("<&", at);
    if (next == std::string_view::npos) break;
    if (page[next] == '&') {
      const std::string_view entity = page.substr(next, page.find(';', next) - next + 1);
      if (!std::set<std::string_view>{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}.contains(entity))
        return fmt::format("entity '{}'", entity.substr(0, 20));
      at = next + 1;
      continue;
    }
    const std::size_t end = page.find('>', next);
    std::string_view tag = page.substr(next + 1, end - next - 1);
    at = end + 1;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return fmt::format("closes '{}'", tag);
      open.pop_back();
      continue;
    }
    const std::size_t name_end = std::min(tag.find(' '), tag.size());
    const std::string name(
        tag.substr(0, name_end - (tag.ends_with('/') && name_end == tag.size())));
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz123456") != std::string::npos)
      return fmt::format("element '{}'", name);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return fmt::format("quotes of '{}'", tag);
    if (const auto id = tag.find(" id=\""); id != std::string_view::npos) {
      const std::string_view value = tag.substr(id + 5, tag.find('"', id + 5) - id - 5);
      if (!ids.emplace(value).second) return fmt::format("id '{}' twice", value);
    }
    if (!tag.ends_with('/')) open.push_back(name);
  }
  return open.empty() ? "" : "leaves '" + open.back() + "' open";
}

TEST(MarkupFault, SeesWhatAPageMustNotHave) {
  EXPECT_EQ(markup_fault("<html><p id=\"a\">x &amp; y<br/></p></html>"), "");
  EXPECT_NE(markup_fault("<html><p>x</html>"), "");
  EXPECT_NE(markup_fault("<html><p>a & b</p></html>"), "");
  EXPECT_NE(markup_fault("<html><p id=\"a\"></p><p id=\"a\"></p></html>"), "");
  EXPECT_NE(markup_fault("<html>"), "");
}

TEST(ReportHtml, IsWellFormedWhateverTheReportHolds) {
  EXPECT_EQ(markup_fault(report_html(passing_report(1))), "");
  EXPECT_EQ(markup_fault(report_html(passing_report())), "");
  EXPECT_EQ(markup_fault(report_html(failing_report())), "");
  EXPECT_EQ(markup_fault(report_html(Report{})), "");
  EXPECT_EQ(markup_fault(comparison_html(sample_comparison())), "");
  Comparison alone = sample_comparison(6);
  alone.a.reset();
  EXPECT_EQ(markup_fault(comparison_html(alone)), "");
}

TEST(ReportHtml, HoldsEverySection) {
  const std::string page = report_html(failing_report());
  for (const char* id : {"verdict", "summary", "gates", "sides", "findings", "layers", "router",
                         "schemes", "heatmap", "histogram", "worst", "outputs"}) {
    EXPECT_THAT(page, HasSubstr(fmt::format(" id=\"{}\"", id)));
  }
}

// The text before the first section for engineers.
std::string opening(const std::string& page) {
  return page.substr(page.find("id=\"summary\""),
                     page.find("id=\"gates\"") - page.find("id=\"summary\""));
}

TEST(ReportHtml, OpensWithWhatAManagerReads) {
  const std::string page = report_html(passing_report());
  const std::string text = opening(page);
  for (const char* part :
       {"689 GB", "391 GB, 57%", "fp8-block → nvfp4", "expert-gate, expert-up", "and 2 more",
        "0.00017 nats", "98.90% of 184 tokens", "10.16619, +0.042%", "2 of 3, 1 undecided",
        "15 of 15 passed", "answers to 3 prompts (only measured)"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(opening(report_html(failing_report())), HasSubstr("8 of 15 passed"));
}

TEST(ReportHtml, SaysWhereEverythingWasJudged) {
  Report report = passing_report();
  report.greedy.reset();
  report.draft.reset();
  report.text.reset();
  EXPECT_THAT(opening(report_html(report)), HasSubstr("nothing: all that was compared has gates"));
}

TEST(ReportHtml, SaysWhichLevelsNobodyAskedFor) {
  Report report = passing_report();
  report.layers.reset();
  report.greedy.reset();
  report.draft.reset();
  report.text.reset();
  report.levels = {Level::kStructure, Level::kWeights};
  const std::string text = opening(report_html(report));
  EXPECT_THAT(text, HasSubstr("level layers (not asked for); level greedy (not asked for)"));
  EXPECT_THAT(text, Not(HasSubstr("KL of the next token")));
}

TEST(ComparisonHtml, ShowsBothBesideTheReference) {
  const std::string page = comparison_html(sample_comparison());
  for (const char* id : {"verdict", "summary", "figures", "roles", "layers", "heatmap", "worst",
                         "outputs", "findings"})
    EXPECT_THAT(page, HasSubstr(fmt::format(" id=\"{}\"", id)));
  for (const char* part : {"<h4>reference</h4>", "<h4>A</h4>", "<h4>B</h4>", "class=\"db1\"",
                           "class=\"da1\"", "VENDOR &lt;b&gt;"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("class=\"verdict\"")));
}

TEST(ReportHtml, LeavesOutWhatDidNotRun) {
  Report report = passing_report();
  report.layers.reset();
  report.greedy.reset();
  report.draft.reset();
  report.text.reset();
  const std::string page = report_html(report);
  for (const char* id : {"layers", "router", "outputs"})
    EXPECT_THAT(page, Not(HasSubstr(fmt::format(" id=\"{}\"", id))));
  EXPECT_THAT(page, HasSubstr(" id=\"heatmap\""));
}

TEST(ReportHtml, SaysNothingOfLogitsThatNobodyCompared) {
  Report report = passing_report();
  report.layers->logits = {};
  report.layers->mtp_logits.reset();
  EXPECT_THAT(report_html(report), Not(HasSubstr("mean KL")));
}

TEST(ReportHtml, FetchesNothingAndRunsNothing) {
  const std::string page = report_html(failing_report());
  for (const char* word :
       {"http:", "https:", "url(", "<script", "src=", "@import", "<iframe", "<object", "onload="})
    EXPECT_THAT(page, Not(HasSubstr(word)));
}

TEST(ReportHtml, EscapesNamesAndAnswers) {
  const std::string page = report_html(failing_report());
  EXPECT_THAT(page, HasSubstr("out &lt;b&gt;&quot;&amp;&#39;&lt;/b&gt;"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script"));
  EXPECT_THAT(page, Not(HasSubstr("out <b>")));
}

TEST(ReportHtml, MarksTheFirstDifferenceOfAnswers) {
  const std::string page = report_html(failing_report());
  EXPECT_THAT(page, HasSubstr("    while b<mark>:</mark>\n"));
  EXPECT_THAT(page, HasSubstr("    while b<mark> !=</mark> 0:"));
  EXPECT_THAT(page, HasSubstr("41 <mark>99</mark>"));
}

TEST(ReportHtml, MarksTheFirstBadLayerAndFaultyWeights) {
  const std::string bad = report_html(failing_report(62));
  EXPECT_THAT(bad, HasSubstr("layer 31: first below"));
  EXPECT_THAT(bad, HasSubstr("layer 31, expert-up: 13.20 dB"));
  const std::string good = report_html(passing_report(62));
  EXPECT_THAT(good, Not(HasSubstr("first below")));
  EXPECT_THAT(good, Not(HasSubstr("class=\"fault\"")));
  EXPECT_THAT(good, Not(HasSubstr("class=\"flaw\"")));
}

TEST(ReportHtml, DrawsNoPointThatIsNoNumber) {
  Report report = failing_report();
  for (LayerAgreement& layer : report.layers->layers) {
    layer.isolated.mean = layer.isolated.worst = layer.accumulated.mean = std::nan("");
    layer.router_overlap = std::nan("");
  }
  for (TensorWeights& tensor : report.weights->tensors) tensor.sums.error2 = std::nan("");
  const std::string page = report_html(report);
  for (const char* attribute : {"x=\"", "y=\"", "points=\"", "height=\""})
    EXPECT_THAT(page, Not(HasSubstr(std::string(attribute) + "nan")));
}

TEST(SpreadTicks, AreRoundAndFewEnough) {
  EXPECT_THAT(spread_ticks(3, 5), ElementsAre(0, 1, 2));
  EXPECT_THAT(spread_ticks(62, 13), ElementsAre(0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60));
  EXPECT_EQ(spread_ticks(10'000, 20).size(), 20U);
  EXPECT_TRUE(spread_ticks(0, 5).empty());
}

TEST(PowerOfTen, IsWrittenWithRaisedDigits) {
  EXPECT_EQ(power_of_ten(-12), "10⁻¹²");
  EXPECT_EQ(power_of_ten(0), "1");
}

}  // namespace
}  // namespace ingot::verify
