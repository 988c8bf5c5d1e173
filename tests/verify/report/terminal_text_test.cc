#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/verify_report.h"
#include "tests/support/contains_pattern.h"
#include "tests/verify/report/sample_report.h"

namespace ingot::cli {
namespace {

using ingot::testing::ContainsPattern;
using ingot::testing::failing_report;
using ingot::testing::passing_report;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(VerifyText, TheVerdictComesFirst) {
  EXPECT_THAT(verify_text(passing_report()), StartsWith("PASS: structure of 91,991 tensors, "));
  EXPECT_THAT(verify_text(failing_report()), StartsWith("FAIL: 1 error in the structure, first "));
}

TEST(VerifyText, NamesBadLayerFaultyTensorsGatesAndFindings) {
  const std::string text = verify_text(failing_report(62));
  EXPECT_THAT(text, HasSubstr("layer 31 is the first below its gate"));
  EXPECT_THAT(text, ContainsPattern("model.layers.31.mlp.experts.0.expert-up.weight +fp8-block to "
                                    "nvfp4 +quantized"));
  EXPECT_THAT(text, ContainsPattern("weights.misrounded <= 0 +4410 +2 of "));
  EXPECT_THAT(text, HasSubstr("error: model.layers.31.mlp.experts.201.down_proj.weight: is in"));
  EXPECT_THAT(text, HasSubstr("prompt 3: different at token 1 (top-2 gap 7.25, limit 0.61)"));
}

TEST(VerifyText, AnIdenticalTensorIsNotAmongTheWorst) {
  const std::string text = verify_text(passing_report());
  EXPECT_THAT(text, Not(HasSubstr("q-a-proj.weight")));
  EXPECT_THAT(text, Not(HasSubstr("failed gates")));
}

TEST(VerifyText, ManyFindingsAreCounted) {
  verify::Report report = failing_report();
  report.structure->findings.resize(70, report.structure->findings[1]);
  EXPECT_THAT(verify_text(report), HasSubstr("and 20 more findings"));
}

TEST(VerifyText, LeavesOutWhatDidNotRunAndSendsNoControlCharacters) {
  verify::Report report = failing_report();
  report.layers.reset();
  report.weights.reset();
  report.structure->findings[0].message = "\x1b[2J";
  report.not_run = {"layers: not enough memory"};
  const std::string text = verify_text(report);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("isolated")), Not(HasSubstr("worst tensors")),
                          Not(HasSubstr("\x1b")), HasSubstr("not run: layers: not enough memory")));
}

}  // namespace
}  // namespace ingot::cli
