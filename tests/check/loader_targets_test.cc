#include "check/rules/loader_targets.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ingot::formats {
namespace {

// Two groups, the first for every linear layer.
Json two_groups(Json first_targets, Json second_targets) {
  const Json int8 = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}};
  const Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  return {{"config_groups",
           {{"group_0", {{"targets", std::move(first_targets)}, {"weights", int8}}},
            {"group_1", {{"targets", std::move(second_targets)}, {"weights", fp8}}}}}};
}

std::string group_name(const LoaderTargets& targets, const std::string& module) {
  const TargetGroup* group = targets.group_of(module);
  return group == nullptr ? "" : group->name;
}

TEST(LoaderTargets, PutNamesAndExpressionsBeforeClasses) {
  const LoaderTargets targets(two_groups({"Linear"}, {"re:.*o_proj$", "a.b"}));
  EXPECT_EQ(group_name(targets, "x.o_proj"), "group_1");
  EXPECT_EQ(group_name(targets, "a.b"), "group_1");
  EXPECT_EQ(group_name(targets, "x.q_proj"), "group_0");
}

TEST(LoaderTargets, TakeTheFirstThatMatches) {
  const LoaderTargets targets(two_groups({"re:.*proj$"}, {"x.o_proj", "y.weights"}));
  EXPECT_EQ(group_name(targets, "x.o_proj"), "group_0");
  EXPECT_EQ(group_name(targets, "y.weights"), "group_1");
  EXPECT_EQ(group_name(targets, "y.weight"), "");
  const LoaderTargets reversed(two_groups({"x.o_proj"}, {"re:.*proj$"}));
  EXPECT_EQ(group_name(reversed, "x.o_proj"), "group_0");
  EXPECT_EQ(group_name(reversed, "y.o_proj"), "group_1");
}

TEST(LoaderTargets, MatchExpressionsFromTheStartAndNotToTheEnd) {
  const LoaderTargets targets(two_groups({"re:model\\.a"}, {"re:b$"}));
  EXPECT_EQ(group_name(targets, "model.abc"), "group_0");
  EXPECT_EQ(group_name(targets, "x.model.abc"), "");
  EXPECT_EQ(group_name(targets, "x.b"), "");
  EXPECT_EQ(group_name(targets, "b"), "group_1");
}

TEST(LoaderTargets, IgnoreByNameAndExpression) {
  Json block = two_groups({"Linear"}, {"re:.*x"});
  block["ignore"] = {"lm_head", "re:.*gate$"};
  const LoaderTargets targets(block);
  EXPECT_TRUE(targets.ignores("lm_head"));
  EXPECT_FALSE(targets.ignores("model.lm_head"));
  EXPECT_TRUE(targets.ignores("model.layers.1.mlp.gate"));
  EXPECT_FALSE(targets.ignores("model.layers.1.mlp.gate_proj"));
}

TEST(LoaderTargets, SayWhatTheyCannotRead) {
  EXPECT_EQ(LoaderTargets(Json::object()).faults().size(), 1U);
  Json block = two_groups(Json::array(), {"re:("});
  block["ignore"] = {1, "re:["};
  EXPECT_EQ(LoaderTargets(block).faults().size(), 4U);
}

TEST(LoaderTargets, LeaveOutExpressionsBeyondALimit) {
  Json block = two_groups({"Linear"}, {"re:.*o_proj$"});
  for (int i = 0; i < 2'000; ++i) block["ignore"].push_back(fmt::format("re:x{}$", i));
  const LoaderTargets targets(block);
  ASSERT_EQ(targets.faults().size(), 1U);
  EXPECT_NE(targets.faults()[0].find("more than 2000 regular expressions"), std::string::npos);
  EXPECT_TRUE(targets.ignores("x1998"));
  EXPECT_FALSE(targets.ignores("x1999"));
}

TEST(LoaderTargets, KnowActivationsWithStoredScales) {
  Json block = two_groups({"Linear"}, {"a.b"});
  block["config_groups"]["group_0"]["input_activations"] = {{"dynamic", "local"}};
  block["config_groups"]["group_1"]["input_activations"] = {{"dynamic", true}};
  const LoaderTargets targets(block);
  EXPECT_TRUE(targets.groups()[0].has_static_inputs);
  EXPECT_FALSE(targets.groups()[1].has_static_inputs);
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
