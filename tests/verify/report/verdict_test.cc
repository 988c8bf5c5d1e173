#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/verify/report/sample_report.h"
#include "verify/report/report.h"

namespace ingot::verify {
namespace {

using ingot::testing::failing_report;
using ingot::testing::passing_report;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
