#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/verify/report/sample_report.h"

namespace ingot::verify {
namespace {

using formats::Json;
using ingot::testing::failing_report;
using ingot::testing::passing_report;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportJson, IsTheSameTextEveryTimeAndParses) {
  const std::string text = formats::json_text(report_json(failing_report()));
  EXPECT_EQ(text, formats::json_text(report_json(failing_report())));
  const Json json = formats::parse_json(text, "report");
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("passed"), false);
  EXPECT_EQ(json.at("levels"), Json({"structure", "weights", "layers", "greedy"}));
  EXPECT_EQ(json.at("layers").at("first_bad_layer"), 31);
  EXPECT_EQ(json.at("structure").at("findings").size(), 2U);
  EXPECT_EQ(json.at("greedy").at("prompts").at(2).at("outcome"), "different");
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
  EXPECT_EQ(json.at("structure").at("findings").size(), 1000U);
  EXPECT_EQ(json.at("structure").at("errors"), 20'000U);
  EXPECT_EQ(json.at("weights").at("worst").size(), 100U);
  EXPECT_EQ(json.at("weights").at("tensors"), 20'000U);
}

TEST(ReportJson, TextCutInsideACharacterStaysJson) {
  Report report = passing_report();
  report.greedy->prompts[0].output_text = "\xe5\xba";
  report.gates[0].subject = "\xff";
  EXPECT_NO_THROW(formats::parse_json(formats::json_text(report_json(report)), "report"));
}

}  // namespace
}  // namespace ingot::verify
