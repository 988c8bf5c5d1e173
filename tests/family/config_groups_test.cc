#include "formats/dialect/config_groups.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

using testing::expect_error;

// Two groups, the first for every linear layer.
Json two_groups(Json first_targets, Json second_targets) {
  const Json int8 = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}};
  const Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  return {{"config_groups",
           {{"group_0", {{"targets", std::move(first_targets)}, {"weights", int8}}},
            {"group_1", {{"targets", std::move(second_targets)}, {"weights", fp8}}}}}};
}

std::string target_name(const ConfigGroups& groups, const std::string& module) {
  const ConfigGroup* group = groups.target_of(module);
  return group == nullptr ? "" : group->name;
}

std::vector<std::string> faults_of(const Json& block) {
  std::vector<std::string> faults;
  const ConfigGroups groups(block, &faults);
  return faults;
}

TEST(ConfigGroups, PutNamesAndExpressionsBeforeClasses) {
  const Json block = two_groups({"Linear"}, {"re:.*o_proj$", "a.b"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "x.o_proj"), "group_1");
  EXPECT_EQ(target_name(groups, "a.b"), "group_1");
  EXPECT_EQ(target_name(groups, "x.q_proj"), "group_0");
  EXPECT_EQ(groups.group_of("x.o_proj")->scheme, SchemeId::kFp8Channel);
}

TEST(ConfigGroups, TakeTheFirstThatMatches) {
  const Json block = two_groups({"re:.*proj$"}, {"x.o_proj", "y.weights"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "x.o_proj"), "group_0");
  EXPECT_EQ(target_name(groups, "y.weights"), "group_1");
  EXPECT_EQ(target_name(groups, "y.weight"), "");
  const Json other = two_groups({"x.o_proj"}, {"re:.*proj$"});
  const ConfigGroups reversed(other);
  EXPECT_EQ(target_name(reversed, "x.o_proj"), "group_0");
  EXPECT_EQ(target_name(reversed, "y.o_proj"), "group_1");
}

TEST(ConfigGroups, MatchExpressionsFromTheStartOnly) {
  const Json block = two_groups({"re:model\\.a"}, {"re:b$"});
  const ConfigGroups groups(block);
  EXPECT_EQ(target_name(groups, "model.abc"), "group_0");
  EXPECT_EQ(target_name(groups, "x.model.abc"), "");
  EXPECT_EQ(target_name(groups, "x.b"), "");
  EXPECT_EQ(target_name(groups, "b"), "group_1");
}

TEST(ConfigGroups, IgnoreByNameAndExpression) {
  Json block = two_groups({"Linear"}, {"re:.*x"});
  block["ignore"] = {"lm_head", "re:.*gate$"};
  const ConfigGroups groups(block);
  EXPECT_TRUE(groups.is_ignored("lm_head"));
  EXPECT_EQ(groups.group_of("lm_head"), std::nullopt);
  EXPECT_FALSE(groups.is_ignored("model.lm_head"));
  EXPECT_TRUE(groups.is_ignored("model.layers.1.mlp.gate"));
  EXPECT_FALSE(groups.is_ignored("model.layers.1.mlp.gate_proj"));
}

TEST(ConfigGroups, CollectWhatTheyCannotRead) {
  EXPECT_EQ(faults_of(Json::object()).size(), 1U);
  Json block = two_groups(Json::array(), {"re:("});
  block["ignore"] = {1, "re:["};
  EXPECT_EQ(faults_of(block).size(), 4U);
}

TEST(ConfigGroups, RefuseListsThatAreNoneWithoutFaults) {
  EXPECT_TRUE(ConfigGroups(Json::object()).groups().empty());
  for (const char* ignore : {"1", "{}", "[1]", "[\"re:(\"]"}) {
    const Json block = {{"ignore", Json::parse(ignore)}};
    expect_error(ErrorCode::kCorrupt, {"ignore"}, [&] { ConfigGroups{block}; });
  }
  const Json no_object = {{"config_groups", 1}};
  expect_error(ErrorCode::kCorrupt, {"config_groups"}, [&] { ConfigGroups{no_object}; });
  const Json block = two_groups("Linear", {1});
  expect_error(ErrorCode::kCorrupt, {"targets"}, [&] { ConfigGroups{block}; });
}

TEST(ConfigGroups, LeaveOutExpressionsBeyondALimit) {
  Json block = two_groups({"Linear"}, {"re:.*o_proj$"});
  for (int i = 0; i < 2'000; ++i) block["ignore"].push_back(fmt::format("re:x{}$", i));
  std::vector<std::string> faults;
  const ConfigGroups judged(block, &faults);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults[0].find("more than 2000 regular expressions"), std::string::npos);
  EXPECT_TRUE(judged.is_ignored("x1998"));
  EXPECT_FALSE(judged.is_ignored("x1999"));
  EXPECT_TRUE(ConfigGroups(block).is_ignored("x1999")) << "who writes from them knows them all";
}

TEST(ConfigGroups, KnowActivationsWithStoredScales) {
  Json block = two_groups({"Linear"}, {"a.b"});
  block["config_groups"]["group_0"]["input_activations"] = {{"dynamic", "local"}};
  block["config_groups"]["group_1"]["input_activations"] = {{"dynamic", true}};
  const ConfigGroups groups(block);
  EXPECT_EQ(groups.groups()[0].activations, Activations::kStatic);
  EXPECT_EQ(groups.groups()[1].activations, Activations::kDynamic);
}

TEST(SchemeOfArguments, FillsInWhatIsLeftOut) {
  const auto scheme = [](const char* text) { return scheme_of_arguments(Json::parse(text)); };
  EXPECT_EQ(scheme(R"({"type":"float","block_structure":[128,128]})"), SchemeId::kFp8Block);
  EXPECT_EQ(scheme(R"({"type":"float"})"), SchemeId::kFp8Tensor);
  EXPECT_EQ(scheme(R"({"group_size":-1})"), SchemeId::kInt8Channel);
  EXPECT_EQ(scheme(R"({"type":"float","group_size":32})"), SchemeId::kMxfp8);
  EXPECT_EQ(scheme(R"({"type":"float","num_bits":4,"group_size":32})"), SchemeId::kMxfp4);
  EXPECT_EQ(scheme(R"({"type":"float","num_bits":4,"strategy":"tensor_group","group_size":16})"),
            SchemeId::kNvfp4);
  EXPECT_EQ(scheme(R"({"type":"int","num_bits":4,"group_size":128})"), std::nullopt);
  EXPECT_EQ(scheme(R"({"strategy":"channel","symmetric":false})"), std::nullopt);
}

}  // namespace
}  // namespace ingot::formats
