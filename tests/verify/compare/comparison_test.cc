#include "verify/compare/comparison.h"

#include <array>
#include <cmath>
#include <utility>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "tests/support/test.h"
#include "tests/verify/report/sample_report.h"

namespace ingot::verify {
namespace {

using namespace ::testing;
using namespace ingot::testing;
using formats::Json;

Comparison difference_alone() {
  Comparison comparison = sample_comparison(6);
  comparison.a.reset();
  comparison.b.is_difference = true;
  return comparison;
}

Json row(const Json& rows, const char* key, const Json& value) {
  for (const Json& one : rows) {
    if (one.at(key) == value) return one;
  }
  return nullptr;
}

TEST(ComparisonSentence, SaysWhichIsCloserAndWhereNot) {
  Comparison comparison = sample_comparison();
  comparison.a->weights = comparison.b.weights;
  for (TensorWeights& tensor : comparison.a->weights->tensors) {
    if (tensor.role == "expert-down") tensor.sums.error2 *= 10;
    if (tensor.role == "expert-up") tensor.sums.error2 /= 2;
  }
  const std::string text = comparison_sentence(comparison);
  EXPECT_THAT(text,
              StartsWith("structure.errors of A 1, of B 0; layers.nonfinite of A 1, of B 0; "
                         "the outputs of A are closer, mean KL of A 0.000244, of B 0.000366"));
  EXPECT_THAT(text, HasSubstr("; the weights of B are closer, SQNR of A "));
  EXPECT_THAT(text, HasSubstr("but not in expert-up"));
}

TEST(ComparisonSentence, DoesNotDecideByChance) {
  Comparison comparison = sample_comparison();
  comparison.a->text.reset();
  comparison.b.text.reset();
  auto& tokens = comparison.b.layers->tokens_of_logits;
  tokens = comparison.a->layers->tokens_of_logits;
  for (TokenDivergence& token : tokens) token.kl += token.prompt % 2 == 0 ? 1e-4 : -1e-4;
  comparison.b.layers->logits = logit_agreement(tokens);
  EXPECT_THAT(comparison_sentence(comparison),
              HasSubstr("; the prompts do not tell the outputs apart"));
}

TEST(ComparisonSentence, WithoutReferenceIsADifference) {
  EXPECT_THAT(comparison_sentence(difference_alone()),
              AllOf(HasSubstr("a difference, not a quality"), HasSubstr("--reference SOURCE")));
}

TEST(ComparisonText, FitsAScreenForManyLayers) {
  const std::string text = comparison_text(sample_comparison(200));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 40) << text;
  for (const char* part : {"figures", "weights by role", "layers", "farthest apart", "B − A"})
    EXPECT_THAT(text, HasSubstr(part));
  const std::string more = comparison_text(sample_comparison(200), 60);
  EXPECT_GT(std::count(more.begin(), more.end(), '\n'), 120);
}

TEST(ComparisonText, HasNoVerdict) {
  for (const std::string& text :
       {comparison_text(sample_comparison()), comparison_text(difference_alone())}) {
    for (const char* word : {"PASS", "FAIL", "NOT JUDGED", "holds"})
      EXPECT_THAT(text, Not(HasSubstr(word)));
  }
}

TEST(ComparisonText, CallsNothingAFaultWithoutReference) {
  Comparison comparison = difference_alone();
  comparison.b.structure->findings = {
      {.tensor = "x", .message = "is not there", .rule = "structure.missing"},
      {.tensor = "y", .message = "has no scale", .rule = "fp8.scale-present"}};
  const std::string text = comparison_text(comparison, 50);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("misrounded")), HasSubstr("SQNR dB"),
                          HasSubstr("\ndifference: x: is not there"),
                          HasSubstr("\nB error: y: has no scale")));
}

TEST(ComparisonMarkdown, HoldsTheSummaryAndTheFigures) {
  const std::string text = comparison_markdown(sample_comparison());
  EXPECT_THAT(text, StartsWith("## Comparison\n"));
  EXPECT_THAT(text, HasSubstr("### In short\n"));
  EXPECT_THAT(text, HasSubstr("| `outputs.kl` |"));
  EXPECT_THAT(text, Not(HasSubstr("VENDOR <b>")));
}

TEST(ComparisonJson, HasEveryFigureAndBothMeasurements) {
  const Json json = comparison_json(sample_comparison());
  EXPECT_FALSE(json.contains("passed"));
  const Json kl = row(json.at("figures"), "figure", "outputs.kl");
  EXPECT_EQ(kl.at("closer"), "A");
  EXPECT_EQ(kl.at("clusters"), 5);
  EXPECT_NEAR(kl.at("difference").get<double>(), 0.85e-4, 1e-12);
  EXPECT_LT(kl.at("interval").at(0), kl.at("difference"));
  EXPECT_EQ(row(json.at("by_role"), "role", "expert-down").at("b_closer"), 122);
  EXPECT_EQ(row(json.at("by_role"), "role", "expert-gate").at("b_closer"), 0);
  EXPECT_EQ(json.at("by_layer").size(), 62U);
  for (const char* side : {"a", "b"})
    EXPECT_TRUE(json.at(side).at("measured").contains("layers")) << side;
}

TEST(ComparisonJson, WithoutReferenceHasOneMeasurement) {
  const Json json = comparison_json(difference_alone());
  EXPECT_TRUE(json.at("reference").is_null());
  EXPECT_EQ(json.at("a").at("name"), "DeepSeek-V3.2");
  EXPECT_TRUE(json.at("difference").contains("weights"));
  EXPECT_FALSE(json.contains("figures"));
}

PairedFigure figure(const std::vector<PairedFigure>& figures, std::string_view name) {
  const auto found = std::ranges::find(figures, name, &PairedFigure::name);
  INGOT_CHECK(found != figures.end());
  return *found;
}

// A tensor of norm 1 whose error has this norm.
TensorWeights tensor(std::string name, double error) {
  TensorWeights weights{.name = std::move(name),
                        .role = "o-proj",
                        .layer = 0,
                        .from = "bf16",
                        .to = "int8-channel",
                        .relation = error == 0 ? Relation::kIdentical : Relation::kQuantized};
  weights.sums.elements = 100;
  weights.sums.source2 = weights.sums.product = 1;
  weights.sums.error2 = error * error;
  weights.sums.output2 = 1 + error * error;
  return weights;
}

Report weights_report(const std::vector<TensorWeights>& tensors) {
  Report report;
  report.weights = WeightsReport{.tensors = tensors};
  return report;
}

// Two prompts of two tokens with these divergences.
Report logits_report(const std::vector<double>& kl, std::size_t worst_token) {
  Report report;
  report.layers = LayersReport{};
  for (std::size_t i = 0; i < kl.size(); ++i) {
    report.layers->tokens_of_logits.push_back(
        {.prompt = i / 2, .token = i % 2, .kl = kl[i], .source_nll = 1, .output_nll = 1 + kl[i]});
  }
  report.layers->logits = logit_agreement(report.layers->tokens_of_logits);
  report.layers->logits.worst_token = worst_token;
  return report;
}

TEST(PairedFigures, PairTensorsByName) {
  const Report a = weights_report({tensor("x", 0.5), tensor("y", 0.25), tensor("only a", 1)});
  const Report b = weights_report({tensor("y", 0.75), tensor("x", 0.25), tensor("only b", 1)});
  const auto figures = paired_figures(a, b);
  const PairedFigure error = figure(figures, "weights.relative_error");
  EXPECT_EQ(error.pairs, 2U);
  EXPECT_DOUBLE_EQ(error.a, 0.375);
  EXPECT_DOUBLE_EQ(error.b, 0.5);
  EXPECT_DOUBLE_EQ(error.difference, 0.125);
  EXPECT_EQ(error.a_closer, 1U);
  EXPECT_EQ(error.b_closer, 1U);
  EXPECT_EQ(error.farthest, "y");
  EXPECT_EQ(error.closer(), Closer::kA);
  EXPECT_FALSE(error.interval);
}

TEST(PairedFigures, LargerIsCloserWhereTheMetricSaysSo) {
  const Report a = weights_report({tensor("x", 0.5)}), b = weights_report({tensor("x", 0.25)});
  EXPECT_EQ(figure(paired_figures(a, b), "weights.sqnr").closer(), Closer::kB);
  EXPECT_EQ(figure(paired_figures(a, b), "weights.relative_error").closer(), Closer::kB);
  EXPECT_EQ(figure(paired_figures(b, a), "weights.sqnr").closer(), Closer::kA);
}

TEST(PairedFigures, ExactTensorsAreEqualAndInNoMean) {
  const Report a = weights_report({tensor("x", 0), tensor("y", 0)});
  const Report b = weights_report({tensor("x", 0), tensor("y", 0.1)});
  EXPECT_EQ(figure(paired_figures(a, a), "weights.sqnr").closer(), Closer::kEqual);
  const PairedFigure sqnr = figure(paired_figures(a, b), "weights.sqnr");
  EXPECT_EQ(sqnr.a_closer, 1U);
  EXPECT_EQ(sqnr.b_closer, 0U);
  EXPECT_EQ(sqnr.closer(), Closer::kA);
  EXPECT_TRUE(std::isnan(sqnr.difference));
}

TEST(PairedFigures, AHundredthOfADecibelIsEqual) {
  const Report a = weights_report({tensor("x", 0.5)}), b = weights_report({tensor("x", 0.5005)}),
               c = weights_report({tensor("x", 0.501)});
  for (const char* name : {"weights.relative_error", "weights.sqnr"}) {
    EXPECT_EQ(figure(paired_figures(a, b), name).closer(), Closer::kEqual) << name;
    EXPECT_EQ(figure(paired_figures(a, c), name).closer(), Closer::kA) << name;
  }
  EXPECT_FALSE(are_apart(1e-9, 5e-9));
  EXPECT_FALSE(are_apart(NAN, NAN));
  EXPECT_TRUE(are_apart(NAN, 1));
  EXPECT_TRUE(are_apart(0, HUGE_VAL));
}

TEST(PairedFigures, ValuesOfAWholeReportAreOnePair) {
  // Their subjects name the worst token, which is another one on each side.
  const Report a = logits_report({0.1, 0.1, 0.1, 0.1}, 0),
               b = logits_report({0.2, 0.2, 0.2, 0.2}, 1);
  const PairedFigure kl = figure(paired_figures(a, b), "outputs.kl");
  EXPECT_EQ(kl.pairs, 1U);
  EXPECT_NEAR(kl.difference, 0.1, 1e-12);
  EXPECT_EQ(kl.closer(), Closer::kA);
}

TEST(PairedFigures, IntervalsAreOverPrompts) {
  const Report a = logits_report({0.1, 0.1, 0.1, 0.1}, 0),
               b = logits_report({0.2, 0.2, 0.4, 0.4}, 0);
  const PairedFigure kl = figure(paired_figures(a, b), "outputs.kl");
  EXPECT_EQ(kl.tokens, 4U);
  EXPECT_EQ(kl.clusters, 2U);
  ASSERT_TRUE(kl.interval);
  EXPECT_NEAR(kl.difference, 0.2, 1e-12);
  // The prompts' means are 0.1 away from it.
  EXPECT_NEAR(kl.interval->high - kl.difference, 12.706205 * 0.1, 1e-6);
  EXPECT_EQ(kl.closer(), Closer::kUndecided) << "the interval holds 0";
}

TEST(PairedFigures, LikelihoodsSayWhoIsLikelierNotCloser) {
  const Report a = logits_report({0.1, 0.1, 0.1, 0.1}, 0),
               b = logits_report({0.2, 0.2, 0.2, 0.2}, 0);
  const PairedFigure nll = figure(paired_figures(a, b), "outputs.nll");
  EXPECT_NEAR(nll.a, 1.1, 1e-12);
  EXPECT_NEAR(nll.difference, 0.1, 1e-12);
  EXPECT_TRUE(nll.interval);
  EXPECT_EQ(nll.closer(), Closer::kNeither);
}

TEST(PairedFigures, DocumentsOfATextAreWeighedByTokens) {
  Report a, b;
  a.text = TextReport{.source = {}, .output = {.sequences = {{10, 20}, {30, 60, 0, 1}}}};
  b.text = TextReport{.source = {}, .output = {.sequences = {{10, 21}, {30, 63, 0, 1}}}};
  const PairedFigure nll = figure(paired_figures(a, b), "text.nll");
  EXPECT_DOUBLE_EQ(nll.a, 2);
  EXPECT_DOUBLE_EQ(nll.difference, 0.1);
  EXPECT_EQ(nll.tokens, 40U);
  ASSERT_TRUE(nll.interval);
  EXPECT_NEAR(nll.interval->low, 0.1, 1e-12) << "both documents differ alike";
}

TEST(PairedFigures, PerplexityIsADistanceFromEitherSide) {
  // A is likelier than the source by 0.1 and 0.2 a token, B less likely by 0.3 and 0.4.
  Report a, b;
  const Likelihood source{.tokens = 20, .nll = 40, .sequences = {{10, 20}, {10, 20, 0, 1}}};
  a.text = TextReport{.source = source,
                      .output = {.tokens = 20, .nll = 37, .sequences = {{10, 19}, {10, 18, 0, 1}}}};
  b.text = TextReport{.source = source,
                      .output = {.tokens = 20, .nll = 47, .sequences = {{10, 23}, {10, 24, 0, 1}}}};
  const PairedFigure distance = figure(paired_figures(a, b), "outputs.perplexity");
  EXPECT_NEAR(distance.a, 0.15, 1e-12);
  EXPECT_NEAR(distance.b, 0.35, 1e-12);
  ASSERT_TRUE(distance.interval);
  EXPECT_NEAR(distance.interval->low, 0.2, 1e-12) << "0.3 - 0.1 and 0.4 - 0.2";
  EXPECT_EQ(distance.drawn, "documents");
  EXPECT_EQ(distance.closer(), Closer::kA);
}

TEST(PairedFigures, WhatIsNoNumberIsFartherThanEveryNumber) {
  Report a = logits_report({0.1, 0.1, 0.1, 0.1}, 0), b = a;
  b.layers->logits.mean_kl = NAN;
  b.layers->tokens_of_logits[0].kl = NAN;
  const PairedFigure kl = figure(paired_figures(a, b), "outputs.kl");
  EXPECT_EQ(kl.closer(), Closer::kA);
  EXPECT_FALSE(kl.interval);
}

// KL sums of A and B in four documents of ten tokens.
Comparison text_comparison(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  Comparison comparison;
  comparison.a.emplace();
  for (auto& [report, sums] : {std::pair{&*comparison.a, &a}, {&comparison.b, &b}}) {
    report->text.emplace();
    report->text->source.emplace();
    for (std::size_t d = 0; d < sums->size(); ++d) {
      report->text->source->sequences.push_back({10, 20, 0, d});
      report->text->output.sequences.push_back({10, 20, (*sums)[d], d});
    }
  }
  return comparison;
}

DemandResult judged(Comparison comparison, std::string_view demand) {
  comparison.demands = {parse_demand(demand)};
  const std::vector<DemandResult> results = judge_demands(comparison);
  EXPECT_EQ(results.size(), 1U);
  EXPECT_EQ(comparison.passed(), results.at(0).holds);
  return results.at(0);
}

TEST(Demands, HoldByTheBadEndOfTheInterval) {
  const std::array<double, 4> one = {1, 2, 3, 4}, closer = {0.5, 1, 1.5, 2};
  EXPECT_TRUE(judged(text_comparison(one, one), "text.kl<=B").holds) << "equal";
  EXPECT_TRUE(judged(text_comparison(closer, one), "text.kl<=B").holds);
  const DemandResult worse = judged(text_comparison(one, closer), "text.kl<=B");
  EXPECT_FALSE(worse.holds);
  EXPECT_GT(worse.worse, 0.125) << "the mean difference is 0.125, its interval goes beyond";
  EXPECT_FALSE(judged(text_comparison(one, closer), "text.kl<=B+0.125").holds);
  EXPECT_TRUE(judged(text_comparison(one, closer), "text.kl<=B+0.2").holds);
}

TEST(Demands, AreNotHeldByChance) {
  // A is closer in the mean, but not in every document.
  const DemandResult result = judged(text_comparison({1, 1, 1, 3}, {2, 2, 2, 1}), "text.kl<=B");
  EXPECT_FALSE(result.holds);
  EXPECT_GT(result.worse, 0);
  EXPECT_THAT(result.reason, HasSubstr("95% at most"));
}

TEST(Demands, NeedFiguresAndIntervals) {
  const DemandResult none = judged(text_comparison({1, 2, 3, 4}, {1, 2, 3, 4}), "outputs.kl<=B");
  EXPECT_FALSE(none.holds);
  EXPECT_TRUE(std::isnan(none.worse));
  Comparison one = text_comparison({1, 2, 3, 4}, {2, 3, 4, 5});
  for (Report* report : {&*one.a, &one.b})
    for (SequenceLikelihood& sequence : report->text->output.sequences) sequence.document = 0;
  const DemandResult result = judged(one, "text.kl<=B");
  EXPECT_FALSE(result.holds);
  EXPECT_THAT(result.reason, HasSubstr("one document gives no interval"));
}

TEST(Demands, OfWeightsAreExact) {
  Comparison comparison;
  comparison.a = weights_report({tensor("x", 0.1), tensor("y", 0.1)});
  comparison.b = weights_report({tensor("x", 0.2), tensor("y", 0.1)});
  const DemandResult better = judged(comparison, "weights.relative_error<=B");
  EXPECT_TRUE(better.holds);
  EXPECT_NEAR(better.worse, -0.05, 1e-6);
  std::swap(*comparison.a, comparison.b);
  EXPECT_FALSE(judged(comparison, "weights.relative_error<=B").holds);
  EXPECT_TRUE(judged(comparison, "weights.relative_error<=B+0.06").holds);
}

TEST(Demands, AreRefusedUnlessTheyNameAFigureAndItsGoodSide) {
  const auto refuse = [](std::string_view text, const char* what) {
    expect_error(ErrorCode::kInvalidArgument, {what}, [&] { parse_demand(text); });
  };
  refuse("text.kl<=0.1", "neither <=B nor >=B");
  refuse("text.kl", "neither <=B nor >=B");
  refuse("text.kl>=B", "less of it is better");
  refuse("outputs.top1<=B", "more of it is better");
  refuse("text.kl<=B-0.1", "+NUMBER");
  refuse("text.kl<=B+", "+NUMBER");
  refuse("text.kl<=B+nan", "+NUMBER");
  refuse("text.lk<=B", "did you mean text.kl?");
  EXPECT_EQ(parse_demand("outputs.top1>=B-0.01").margin, 0.01);
  EXPECT_EQ(demand_text(parse_demand("text.kl<=B+1e-06")), "text.kl<=B+1e-06");
}

TEST(PairedGroups, CountWhoIsCloserAndSumUp) {
  const Report a = weights_report({tensor("x", 0.1), tensor("y", 0.1), tensor("z", 0)});
  const Report b = weights_report({tensor("x", 0.2), tensor("y", 0.05), tensor("z", 0)});
  const auto groups = paired_groups(paired_tensors(a, b), {.by_role = true});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].tensors, 3U);
  EXPECT_EQ(groups[0].a_closer, 1U);
  EXPECT_EQ(groups[0].b_closer, 1U);
  EXPECT_THAT(groups[0].a_schemes, ElementsAre("int8-channel"));
  // 10 log10(3 / 0.0425) - 10 log10(3 / 0.02)
  EXPECT_NEAR(groups[0].difference_db(), -3.27359, 1e-4);
}

}  // namespace
}  // namespace ingot::verify
