#include "formats/json/json.h"
#include "report/svg.h"
#include "tests/support/contains_pattern.h"
#include "tests/support/test.h"
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
  // Further lines of a message begin with blanks.
  std::size_t end = text.find('\n') + 1;
  while (text.at(end) == ' ') end = text.find('\n', end) + 1;
  const std::string verdict = text.substr(0, end);
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
              HasSubstr("first drafts accepted: 52.40% of the source's, 50.00% of the output's, of "
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
        "16 of 16 passed", "answers to 3 prompts (only measured)"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(opening(report_html(failing_report())), HasSubstr("9 of 16 passed"));
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
