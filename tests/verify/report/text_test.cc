#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/contains_pattern.h"
#include "tests/verify/report/sample_report.h"
#include "verify/report/document.h"

namespace ingot::verify {
namespace {

using ingot::testing::ContainsPattern;
using ingot::testing::failing_report;
using ingot::testing::passing_report;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ReportText, VerdictComesFirst) {
  EXPECT_THAT(report_text(passing_report()), StartsWith("PASS: structure of 91,991 tensors, "));
  EXPECT_THAT(report_text(failing_report()), StartsWith("FAIL: 1 error in the structure, first "));
}

TEST(ReportText, NamesBadLayerTensorsGatesAndFindings) {
  const std::string text = report_text(failing_report(62));
  EXPECT_THAT(text, HasSubstr("layer 31 is the first below its gate"));
  EXPECT_THAT(text, ContainsPattern("experts.0.expert-up.weight +fp8-block → nvfp4 +quantized"));
  EXPECT_THAT(text, ContainsPattern("weights.misrounded <= 0 +4410 +2 of "));
  EXPECT_THAT(text, HasSubstr("error: model.layers.31.mlp.experts.201.down_proj.weight: is in"));
  EXPECT_THAT(text,
              HasSubstr("different: prompt 3: at token 1: the source's two likeliest are 7.25"));
}

TEST(ReportText, FitsAScreenWhateverIsWrong) {
  Report report = failing_report(200);
  EXPECT_LE(lines_of(report_text(passing_report(200))), 40);
  EXPECT_LE(lines_of(report_text(report)), 40);
  report.structure->findings.resize(70, report.structure->findings[1]);
  report.weights->sample = 0.5;
  report.weights->unmatched = 1;
  report.gates.resize(60, report.gates.front());
  for (GateResult& gate : report.gates) gate.passed = false;
  report.greedy->prompts.resize(50, report.greedy->prompts[2]);
  report.warnings.resize(50, "of a line");
  for (std::size_t i = 0; i < 2000; ++i) {
    report.weights->tensors.push_back(report.weights->tensors[i % 40]);
    report.weights->tensors.back().role += std::to_string(i);
  }
  const std::string text = report_text(report);
  EXPECT_LE(lines_of(text), 40) << text;
  for (const char* part : {"worst tensors", "worst layers", "failed gates", "perplexity", "more ("})
    EXPECT_THAT(text, HasSubstr(part));
  // Five tensors all the same.
  EXPECT_THAT(text, ContainsPattern("\n *worst tensors[^\n]*(\n +model[^\n]*){5}\n"));
}

TEST(ReportText, PrintsAsManyTensorsAsAskedFor) {
  const std::string text = report_text(failing_report(62), 30);
  EXPECT_THAT(text, ContainsPattern("(\n +model\\.layers[^\n]*){30}\n"));
  EXPECT_THAT(text, Not(HasSubstr("more (")));
}

TEST(ReportText, SumsUpIdenticalRoles) {
  const std::string text = report_text(passing_report(62));
  EXPECT_THAT(text, ContainsPattern("\n +bf16 +[0-9]+ roles +"));
  EXPECT_THAT(text, Not(HasSubstr("q-a-proj")));
}

TEST(ReportText, PassingReportNamesNoFailedGate) {
  EXPECT_THAT(report_text(passing_report()), Not(HasSubstr("failed gates")));
}

TEST(ReportText, LeavesOutWhatDidNotRun) {
  Report report = failing_report();
  report.layers.reset();
  report.weights.reset();
  report.structure->findings[0].message = "\x1b[2J";
  report.not_run = {"layers: not enough memory"};
  const std::string text = report_text(report);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("isolated")), Not(HasSubstr("worst tensors")),
                          Not(HasSubstr("\x1b")), HasSubstr("not run: layers: not enough memory")));
}

TEST(WriteText, LongestTableGivesUpRowsFirst) {
  Table longer{.columns = {"long"}}, table{.columns = {"short"}};
  for (int i = 0; i < 9; ++i) longer.rows.push_back({std::to_string(i)});
  table.rows = {{"a"}, {"b"}};
  const Document document{.sections = {{"", "", {longer, table}}}};
  EXPECT_EQ(write_text(document, 8),
            "  long\n  0\n  1\n  2\n  ... 6 more (--worst N or --json)\n  short\n  a\n  b\n");
  EXPECT_EQ(lines_of(write_text(document, 0)), 13);
}

TEST(Markdown, LeavesNothingForHtmlToRead) {
  const std::string text = report_markdown(failing_report());
  EXPECT_THAT(text, HasSubstr("out &lt;b>\"&amp;'&lt;/b>"));
  EXPECT_THAT(text, HasSubstr("ignores &lt;lm\\_head> &amp; "));
}

TEST(Markdown, HoldsVerdictGatesAndFingerprints) {
  const std::string text = report_markdown(failing_report());
  EXPECT_THAT(text, StartsWith("## Verification: FAIL\n"));
  EXPECT_THAT(text, HasSubstr("| `weights.misrounded <= 0` | 4410 | "));
  EXPECT_THAT(text, HasSubstr("`9b1d0c5e7f3a42186f0de2b4a7c89135`"));
  EXPECT_THAT(text, HasSubstr("1 equal, 1 inconclusive, 1 different"));
}

}  // namespace
}  // namespace ingot::verify
