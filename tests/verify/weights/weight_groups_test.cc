#include <gtest/gtest.h>

#include "verify/weights/weight_check.h"

namespace ingot::verify {
namespace {

/// A tensor with this relative error and a scale of 1 + error / 10.
TensorWeights tensor(const std::string& name, const std::string& role,
                     std::optional<std::uint32_t> layer, const std::string& to, double error) {
  TensorWeights made{.name = name, .role = role, .layer = layer, .from = "fp8-block", .to = to};
  made.relation = error == 0 ? Relation::kIdentical : Relation::kQuantized;
  made.sums.elements = 10;
  made.sums.source2 = 100;
  made.sums.error2 = 100 * error * error;
  made.sums.product = 100 * (1 + error / 10);
  made.sums.output2 = 2 * made.sums.product - 100 + made.sums.error2;
  return made;
}

WeightsReport example() {
  WeightsReport report;
  report.tensors = {tensor("a0", "up", 0, "int8", 0.01), tensor("b0", "norm", 0, "bf16", 0),
                    tensor("a1", "up", 1, "int8", 0.03), tensor("a2", "up", 1, "int8", 0.02),
                    tensor("c", "up", 1, "nvfp4", 0.1),  tensor("head", "head", {}, "bf16", 0)};
  return report;
}

TEST(WeightGroups, AreBySchemeAndRoleInOrder) {
  const auto groups = by_scheme_and_role(example());
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].role, "up");
  EXPECT_EQ(groups[0].from, "fp8-block");
  EXPECT_EQ(groups[0].to, "int8");
  EXPECT_FALSE(groups[0].layer.has_value());
  EXPECT_EQ(groups[0].tensors, 3U);
  EXPECT_EQ(groups[0].identical, 0U);
  EXPECT_EQ(groups[0].sums.elements, 30U);
  EXPECT_EQ(groups[0].worst, "a1");
  EXPECT_DOUBLE_EQ(groups[0].worst_scale, 1.003);
  EXPECT_EQ(groups[0].least_cosine, example().tensors[2].sums.cosine());
  EXPECT_EQ(groups[1].role, "norm");
  EXPECT_EQ(groups[1].identical, 1U);
  EXPECT_EQ(groups[1].least_cosine, 1);
  EXPECT_EQ(groups[2].to, "nvfp4");
  EXPECT_EQ(groups[3].role, "head");
}

TEST(WeightGroups, AreByLayerAndRole) {
  const auto groups = by_layer_and_role(example());
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].layer, 0U);
  EXPECT_EQ(groups[2].layer, 1U);
  EXPECT_EQ(groups[2].tensors, 3U);
  EXPECT_EQ(groups[2].worst, "c");
  EXPECT_TRUE(groups[2].to.empty());
  EXPECT_FALSE(groups[3].layer.has_value());
}

TEST(WeightGroups, FaultsComeBeforeLargerErrors) {
  WeightsReport report = example();
  report.tensors[0].sums.misrounded = 1;
  report.tensors[1].relation = Relation::kNarrowed;
  const auto worst = worst_tensors(report, 4);
  ASSERT_EQ(worst.size(), 4U);
  EXPECT_EQ(worst[0]->name, "a0");
  EXPECT_EQ(worst[1]->name, "b0");
  EXPECT_EQ(worst[2]->name, "c");
  EXPECT_EQ(worst[3]->name, "a1");
  EXPECT_EQ(worst_tensors(report, 100).size(), 6U);
}

TEST(WeightGroups, AreNoneForNothing) {
  EXPECT_TRUE(by_scheme_and_role({}).empty());
  EXPECT_TRUE(by_layer_and_role({}).empty());
  EXPECT_TRUE(worst_tensors({}, 5).empty());
}

TEST(WeightGroups, RelationsHaveNames) {
  EXPECT_EQ(relation_name(Relation::kIdentical), "identical");
  EXPECT_EQ(relation_name(Relation::kNarrowed), "narrowed");
}

}  // namespace
}  // namespace ingot::verify
