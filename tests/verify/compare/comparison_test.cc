#include "verify/compare/comparison.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
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
  EXPECT_THAT(text, StartsWith("structure.errors of A 1, of B 0; layers.nonfinite of A 1, of B 0; "
                               "the outputs of A are closer, mean KL of A 0.00017, of B 0.000255"));
  EXPECT_THAT(text, HasSubstr("; the weights of B are closer, SQNR of A "));
  EXPECT_THAT(text, HasSubstr("but not in expert-up"));
}

TEST(ComparisonSentence, DoesNotDecideByChance) {
  Comparison comparison = sample_comparison();
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

}  // namespace
}  // namespace ingot::verify
