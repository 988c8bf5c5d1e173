#include "convert/recipe/selector.h"

#include "convert/recipe/recipe.h"
#include "formats/family/families.h"
#include "formats/family/roles.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Role;

/// The example has layers 0 to 4, of which 0 is dense, and an MTP layer 5.
class ExampleSelector : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> names(const std::string& text) const {
    Selector selector(text);
    selector.set_layers(source_.config().num_hidden_layers);
    std::vector<std::string> found;
    for (const LogicalTensor& tensor : source_.tensors()) {
      if (selector.matches(tensor)) found.push_back(tensor.name);
    }
    return found;
  }
  /// The tensors that some selectors find, by looking them up one by one.
  [[nodiscard]] std::vector<std::string> in_all(const std::vector<std::string>& texts) const {
    std::vector<std::string> found = names(texts.front());
    for (const std::string& text : texts) {
      const std::vector<std::string> more = names(text);
      std::erase_if(found, [&](const std::string& name) {
        return std::find(more.begin(), more.end(), name) == more.end();
      });
    }
    return found;
  }

  const Checkpoint source_ = Checkpoint::open(tiny_v32());
};

TEST_F(ExampleSelector, AGroupIsTheSumOfItsRoles) {
  for (const formats::RoleGroup& group : formats::role_groups()) {
    std::size_t n = 0;
    for (const LogicalTensor& tensor : source_.tensors()) {
      if (group.roles.has(tensor.rule->role)) ++n;
    }
    EXPECT_EQ(names("role:" + std::string(group.name)).size(), n) << group.name;
    EXPECT_GT(n, 0U) << group.name;
    EXPECT_FALSE(formats::find_role(group.name)) << "a role has this name too";
  }
}

TEST_F(ExampleSelector, ExpertsAreThoseOfTheirNames) {
  EXPECT_EQ(names("role:experts"), names("model.layers.*.mlp.experts.*"));
  EXPECT_EQ(names("role:shared-experts"), names("model.layers.*.mlp.shared_experts.*"));
  EXPECT_EQ(names("role:mlp"), names("re:model\\.layers\\.\\d+\\.mlp\\..*(gate|up|down)_proj"));
  EXPECT_EQ(names("role:norm"), names("re:.*norm\\.(weight|bias)"));
}

// A release may quantize a projection of the MTP layer or gates of attention too, which engines of
// others want plain, its tables, and tensors without a role of their own.
TEST(RoleGroups, LinearIsWhatReleasesQuantize) {
  const formats::RoleSet linear = *formats::find_roles("linear");
  const std::set<Role> others = {Role::kMtpProj, Role::kAttentionGate, Role::kLookupTable,
                                 Role::kOther};
  std::set<Role> released, all;
  for (const formats::Family* family : formats::families()) {
    for (const formats::TensorRule& rule : family->rules) {
      all.insert(rule.role);
      if (rule.fp8_by_default && !others.contains(rule.role)) released.insert(rule.role);
    }
  }
  for (const Role role : all)
    EXPECT_EQ(linear.has(role), released.contains(role)) << formats::role_name(role);
}

TEST_F(ExampleSelector, LayersAreNumbersRangesAndWords) {
  EXPECT_EQ(names("layers:0-1"), names("re:model\\.layers\\.[01]\\."));
  EXPECT_EQ(names("layers:0,last"), names("re:model\\.layers\\.[04]\\."));
  EXPECT_EQ(names("layers:3-last"), names("re:model\\.layers\\.[34]\\."));
  EXPECT_EQ(names("layers:mtp"), names("model.layers.5.*"));
  EXPECT_EQ(names("layers:0-9"), names("model.layers.*"));
  EXPECT_THAT(names("layers:6-9"), ::testing::IsEmpty());
}

TEST_F(ExampleSelector, TermsWithAnAmpersandMustAllMatch) {
  for (const std::vector<std::string>& terms :
       {std::vector<std::string>{"layers:0-2", "role:experts"},
        {"role:linear", "model.layers.*.self_attn.*"},
        {"re:.*up_proj", "layers:mtp", "role:experts"}}) {
    std::string text;
    for (const std::string& term : terms) text += (text.empty() ? "" : " & ") + term;
    EXPECT_EQ(names(text), in_all(terms)) << text;
    EXPECT_FALSE(names(text).empty()) << text;
  }
  EXPECT_EQ(names("layers:1&role:experts"), names("layers:1 & role:experts"));
}

TEST(Selector, KnowsLastAndMtpOnceLayersAreCounted) {
  LogicalTensor tensor;
  tensor.layer = 4;
  Selector last("layers:last");
  EXPECT_FALSE(last.matches(tensor));
  last.set_layers(5);
  EXPECT_TRUE(last.matches(tensor));
  tensor.layer.reset();
  EXPECT_FALSE(last.matches(tensor));
}

TEST(Selector, RefusesWhatItDoesNotKnow) {
  const auto refuse = [](const char* text, std::initializer_list<std::string> facts) {
    expect_error(ErrorCode::kInvalidArgument, facts, [&] { Selector{text}; });
  };
  refuse("role:expert", {"no role 'expert'", "shared-experts", "ingot list roles DIR"});
  refuse("layers:", {"layers:0-2,last"});
  refuse("layers:3-1", {"'3-1'"});
  refuse("layers:-1", {"'-1'"});
  refuse("layers:1-2-3", {"'1-2-3'"});
  refuse("layers:99999999999", {"'99999999999'"});
  refuse("layers:1,,2", {"''"});
  refuse("role:experts &", {"nothing on one side"});
  refuse("& role:experts", {"nothing on one side"});
  refuse("re:( & role:experts", {});
}

TEST_F(ExampleSelector, ARuleThatFindsNothingNamesTheRemedy) {
  const auto plan = [&](const char* rule) {
    Recipe recipe;
    recipe.rules.push_back(parse_rule(rule));
    static_cast<void>(plan_for(source_, recipe));
  };
  expect_error(ErrorCode::kInvalidArgument, {"layers:0 & role:experts", "ingot list roles DIR"},
               [&] { plan("layers:0 & role:experts=keep"); });
  expect_error(ErrorCode::kInvalidArgument, {"nothing.*", "ingot inspect --tensors"},
               [&] { plan("nothing.*=keep"); });
}

TEST_F(ExampleSelector, ReachThePlanAndTheManifestAsWritten) {
  Recipe recipe = parse_recipe(
      "rules:\n- {match: 'layers:last & role:mlp', scheme: bf16}\n- {match: 'role:experts', "
      "scheme: int8}\n",
      "r");
  EXPECT_EQ(recipe.to_json()["rules"][0]["match"], "layers:last & role:mlp");
  const Plan plan = plan_for(source_, recipe);
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (!formats::is_routed_expert(tensor.rule->role)) continue;
    EXPECT_EQ(planned.to,
              tensor.layer == 4 ? formats::SchemeId::kBf16 : formats::SchemeId::kInt8Channel)
        << tensor.name;
  }
}

}  // namespace
}  // namespace ingot::convert
