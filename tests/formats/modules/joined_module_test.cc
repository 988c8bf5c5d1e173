#include "formats/modules/joined_module.h"

#include "formats/family/families.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

const TensorRule* rule_of(const std::string& family, Role role) {
  for (const TensorRule& rule : find_family(family)->rules) {
    if (rule.role == role) return &rule;
  }
  return nullptr;
}

std::string joined(const std::string& weight, Role role, ExpertJoin experts = ExpertJoin::kExpert) {
  return joined_module(weight, rule_of("deepseek_v3", role), experts);
}

TEST(JoinedModule, HasGateAndUpOfOneParent) {
  const std::string gate = joined("model.layers.0.mlp.gate_proj.weight", Role::kDenseGate);
  EXPECT_FALSE(gate.empty());
  EXPECT_EQ(gate, joined("model.layers.0.mlp.up_proj.weight", Role::kDenseUp));
  EXPECT_NE(gate, joined("model.layers.1.mlp.up_proj.weight", Role::kDenseUp));
  EXPECT_EQ(joined("model.layers.0.mlp.down_proj.weight", Role::kDenseDown), "");
  EXPECT_EQ(joined_module("model.layers.0.mlp.gate_proj.weight", nullptr, ExpertJoin::kExpert), "");
}

TEST(JoinedModule, ReachesAsFarInExpertsAsAsked) {
  const std::string experts = "model.layers.3.mlp.experts.";
  const auto of = [&](const char* weight, Role role, ExpertJoin join) {
    return joined(experts + weight, role, join);
  };
  using enum ExpertJoin;
  const std::string gate = of("0.gate_proj.weight", Role::kExpertGate, kExpert);
  EXPECT_EQ(gate, of("0.up_proj.weight", Role::kExpertUp, kExpert));
  EXPECT_NE(gate, of("1.up_proj.weight", Role::kExpertUp, kExpert));
  EXPECT_EQ(of("0.down_proj.weight", Role::kExpertDown, kExpert), "");
  EXPECT_EQ(of("0.gate_proj.weight", Role::kExpertGate, kMatrix),
            of("7.up_proj.weight", Role::kExpertUp, kMatrix));
  EXPECT_NE(of("0.gate_proj.weight", Role::kExpertGate, kMatrix),
            of("0.down_proj.weight", Role::kExpertDown, kMatrix));
  EXPECT_EQ(of("0.gate_proj.weight", Role::kExpertGate, kLayer),
            of("9.down_proj.weight", Role::kExpertDown, kLayer));
}

TEST(JoinedModule, LeavesVectorsAndTheIndexerAlone) {
  for (const Family* family : families()) {
    for (const TensorRule& rule : family->rules) {
      if (rule.role != Role::kAttentionBias && !is_expert_bias(rule.role) &&
          rule.role != Role::kIndexerK)
        continue;
      EXPECT_EQ(joined_module("model.layers.0.a.b.weight", &rule, ExpertJoin::kLayer), "")
          << family->name << " " << rule.pattern;
    }
  }
}

}  // namespace
}  // namespace ingot::formats
