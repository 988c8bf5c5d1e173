#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/contains_pattern.h"
#include "tests/verify/report/sample_report.h"
#include "verify/gates/report.h"

namespace ingot::verify {
namespace {

using namespace ::testing;
using namespace ingot::testing;
using formats::Json;

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ReportText, VerdictComesFirst) {
  EXPECT_THAT(report_text(passing_report()), StartsWith("PASS: structure of 91,991 tensors, "));
  EXPECT_THAT(report_text(failing_report()), StartsWith("FAIL: 1 error in the structure, first "));
}

TEST(ReportText, VerdictIsTheLastLineOfAScreen) {
  const std::string text = report_text(failing_report(62), {}, 80);
  const std::string verdict = text.substr(0, text.find('\n') + 1);
  EXPECT_THAT(verdict, StartsWith("FAIL: "));
  EXPECT_THAT(text, EndsWith("\n\n" + verdict));
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

TEST(ReportText, TellsOfChoicesNearATie) {
  Report report = passing_report();
  const auto has_pattern = ContainsPattern("otherwise; output: router 7, indexer 2, tokens 1");
  EXPECT_THAT(report_text(report), has_pattern);
  EXPECT_THAT(report_html(report), has_pattern);
  report.greedy->output_near_ties = {};
  EXPECT_THAT(report_text(report), Not(HasSubstr("near a tie")));
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
  EXPECT_THAT(text,
              HasSubstr("first drafts held: 52.40% of the source's, 50.00% of the output's, of "
                        "1,000 on the source's answers; lost 2.40 points (95%: 1.25 to "
                        "3.50)"));
}

TEST(ReportJson, IsTheSameTextEveryTimeAndParses) {
  const std::string text = formats::json_text(report_json(failing_report()));
  EXPECT_EQ(text, formats::json_text(report_json(failing_report())));
  const Json json = formats::parse_json(text, "report");
  EXPECT_EQ(json.at("passed"), false);
  EXPECT_EQ(json.at("levels"), Json({"structure", "weights", "layers", "greedy", "draft"}));
  EXPECT_EQ(json.at("layers").at("first_bad_layer"), 31);
  EXPECT_EQ(json.at("errors").at(0).at("code"), "missing-tensor");
  // That of the comparison, then that of the structure.
  EXPECT_EQ(json.at("warnings").size(), 2U);
  EXPECT_EQ(json.at("warnings").at(1).at("file"), "config.json");
  EXPECT_EQ(json.at("greedy").at("prompts").at(2).at("outcome"), "different");
  EXPECT_EQ(json.at("draft").at("output").at("acceptance"), 0.5);
  EXPECT_EQ(json.at("draft").at("interval"), Json({1.25, 3.5}));
}

TEST(ReportJson, NumbersThatAreNoneAreNull) {
  const Json json = report_json(failing_report());
  EXPECT_TRUE(json.at("layers").at("layers").back().at("accumulated").at("mean").is_null());
  // Without error there is no ratio to it.
  EXPECT_TRUE(json.at("weights").at("by_scheme_and_role").at(2).at("sqnr_db").is_null());
}

TEST(ReportJson, LevelsThatDidNotRunAreNotThere) {
  Report report = passing_report();
  report.layers.reset();
  report.source.reset();
  const Json json = report_json(report);
  EXPECT_FALSE(json.contains("layers"));
  EXPECT_TRUE(json.contains("weights"));
  EXPECT_TRUE(json.at("source").is_null());
}

TEST(ReportJson, StaysBoundedWhereEverythingIsWrong) {
  Report report = passing_report();
  report.structure->findings.assign(20'000, {.message = "is not there"});
  report.weights->tensors.resize(20'000, report.weights->tensors.back());
  const Json json = report_json(report);
  EXPECT_EQ(json.at("errors").size(), 1000U);
  EXPECT_EQ(json.at("summary").at("errors"), 20'000U);
  EXPECT_EQ(json.at("weights").at("worst").size(), 100U);
  EXPECT_EQ(json.at("weights").at("tensors"), 20'000U);
}

TEST(ReportJson, TextCutInsideACharacterStaysJson) {
  Report report = passing_report();
  report.greedy->prompts[0].output_text = "\xe5\xba";
  report.gates[0].subject = "\xff";
  EXPECT_NO_THROW(formats::parse_json(formats::json_text(report_json(report)), "report"));
}

TEST(Verdict, GoodConversionPassesAndNamesLevels) {
  const Report report = passing_report();
  EXPECT_TRUE(report.passed());
  EXPECT_THAT(verdict_sentence(report), AllOf(HasSubstr("6 layers on 184 tokens"),
                                              HasSubstr("3 prompts"), HasSubstr("held")));
  EXPECT_EQ(first_bad_layer(report), std::nullopt);
  EXPECT_THAT(compared_sentence(report),
              AllOf(HasSubstr("DeepSeek-V3.2-NVFP4-tp2-ep4 (modelopt: nvfp4"),
                    HasSubstr("against DeepSeek-V3.2 (fp8: fp8-block")));
}

TEST(Verdict, NamesTheFirstFailureAndCountsTheOthers) {
  const Report report = failing_report(62);
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(verdict_sentence(report),
              AllOf(StartsWith("1 error in the structure, first model.layers.31.mlp.experts.201"),
                    HasSubstr("more")));
}

TEST(Verdict, NamesTheFirstBadLayer) {
  Report report = failing_report(62);
  EXPECT_EQ(first_bad_layer(report), 31U);
  std::erase_if(report.gates,
                [](const GateResult& result) { return result.gate.metric != "layers.cosine"; });
  EXPECT_THAT(verdict_sentence(report),
              StartsWith("layer 31 is the first below layers.cosine[nvfp4-experts] >= 0.997"));
}

TEST(Verdict, ALayerWithoutANumberIsBad) {
  Report report = passing_report();
  report.layers->layers[4].isolated.mean = std::nan("");
  report.gates = judge(report, default_thresholds(""));
  EXPECT_EQ(first_bad_layer(report), 4U);
  EXPECT_FALSE(report.passed());
}

TEST(Verdict, MissingLevelFails) {
  Report report = passing_report();
  report.not_run = {"greedy: the output has no tokenizer"};
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(verdict_sentence(report), HasSubstr("greedy: the output has no tokenizer"));
}

TEST(Verdict, SaysWhatWasOnlyMeasured) {
  Report report = passing_report();
  std::erase_if(report.gates,
                [](const GateResult& result) { return result.gate.metric.starts_with("greedy."); });
  EXPECT_EQ(verdict_word(report), "PASS");
  EXPECT_THAT(verdict_sentence(report), HasSubstr("held; answers to 3 prompts, "));
  EXPECT_THAT(coverage_of(report).judged,
              ::testing::Not(::testing::Contains(HasSubstr("answers"))));
}

TEST(Verdict, IsNoPassWhereNothingWasJudged) {
  Report report = passing_report();
  report.structure.reset();
  report.weights.reset();
  report.layers.reset();
  report.gates.clear();
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(verdict_word(report), "NOT JUDGED");
  EXPECT_THAT(verdict_sentence(report), StartsWith("nothing was judged; answers to 3 prompts"));
}

TEST(Verdict, NamesStaticScalesThatNoLevelJudged) {
  Report report = passing_report();
  report.layers.reset();
  report.structure->hashed = 0;
  report.output.static_inputs = 7;
  EXPECT_THAT(verdict_sentence(report),
              HasSubstr("not judged by these levels: 7 static scales of activations"));
  report.structure->hashed = 7;
  EXPECT_THAT(verdict_sentence(report), ::testing::Not(HasSubstr("static scales")));
}

TEST(Verdict, SaysThatADemandWasNotMeasured) {
  Report report = passing_report();
  report.layers.reset();
  Thresholds thresholds;
  add_requirement("outputs.kl<=0.001", thresholds);
  report.gates = judge(report, thresholds);
  EXPECT_EQ(verdict_sentence(report), "outputs.kl <= 0.001 was demanded, and nothing was measured");
}

}  // namespace
}  // namespace ingot::verify
