#include "convert/recipe/recipe.h"

#include "convert/recipe/default_recipes.h"
#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace formats;
using ingot::testing::expect_error;

const TensorRule kUpRule{.pattern = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
                         .role = Role::kExpertUp};
const TensorRule kNormRule{.pattern = "model.norm.weight", .role = Role::kFinalNorm};

LogicalTensor tensor(std::string name, SchemeId scheme, const TensorRule* rule = nullptr) {
  LogicalTensor tensor;
  tensor.name = std::move(name);
  tensor.encoding.scheme = scheme;
  tensor.rule = rule;
  return tensor;
}

LogicalTensor expert(int layer, int number) {
  return tensor("model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(number) +
                    ".up_proj.weight",
                SchemeId::kFp8Block, &kUpRule);
}

void expect_refused(const std::string& yaml, std::initializer_list<std::string> fragments) {
  SCOPED_TRACE(yaml.substr(0, 200));
  expect_error(ErrorCode::kInvalidArgument, fragments, [&] { parse_recipe(yaml, "recipe.yaml"); });
}

TEST(Recipe, SplitsARuleAtItsLastEqualsSign) {
  const Rule rule = parse_rule("re:model\\.(a=b|c)=bf16");
  EXPECT_EQ(rule.selector.text(), "re:model\\.(a=b|c)");
  EXPECT_EQ(rule.scheme, SchemeId::kBf16);
  EXPECT_EQ(rule.origin, RuleOrigin::kRule);
  EXPECT_TRUE(rule.matches(tensor("model.a=b", SchemeId::kBf16)));
}

TEST(Recipe, UnderstandsSchemeNamesToWordsAndKeep) {
  EXPECT_EQ(parse_rule("*=fp8").scheme, SchemeId::kFp8Block);
  EXPECT_EQ(parse_rule("*=fp8-block").scheme, SchemeId::kFp8Block);
  EXPECT_EQ(parse_rule("*=int8").scheme, SchemeId::kInt8Channel);
  EXPECT_EQ(parse_rule("*=INT8-Channel").scheme, SchemeId::kInt8Channel);
  EXPECT_EQ(parse_rule("*=BF16").scheme, SchemeId::kBf16);
  EXPECT_EQ(parse_recipe("to: Fp8\n", "r").to, SchemeId::kFp8Block);
  EXPECT_EQ(parse_rule("*=keep").scheme, std::nullopt);
  EXPECT_EQ(parse_rule("*=KEEP").scheme, std::nullopt);
}

TEST(Recipe, ARuleNarrowsOnlyWhatItNames) {
  const LogicalTensor plain = tensor("model.norm.weight", SchemeId::kF32, &kNormRule);
  const auto decided = [](const LogicalTensor& of, std::initializer_list<const char*> rules) {
    Recipe recipe;
    for (const char* rule : rules) recipe.rules.push_back(parse_rule(rule));
    return recipe.decide(of).scheme;
  };
  for (const char* wide : {"*=bf16", "model.norm.*=bf16", "re:model\\.norm\\.weight=bf16", "*=f16"})
    EXPECT_EQ(decided(plain, {wide}), std::nullopt) << wide;
  for (const char* named : {"model.norm.weight=bf16", "role:final-norm=bf16"})
    EXPECT_EQ(decided(plain, {"*=bf16", named}), SchemeId::kBf16) << named;
  EXPECT_EQ(decided(expert(3, 17), {"*=bf16"}), SchemeId::kBf16) << "quantized";
  EXPECT_EQ(decided(tensor("a", SchemeId::kBf16), {"*=f32"}), SchemeId::kF32) << "wider";
  EXPECT_EQ(decided(tensor("a", SchemeId::kBf16), {"*=f16"}), SchemeId::kF16) << "as wide";
  EXPECT_EQ(decided(plain, {"*=fp8"}), SchemeId::kFp8Block) << "not plain";
  Recipe recipe;
  recipe.rules.push_back(parse_rule("*=bf16"));
  ASSERT_NE(recipe.decide(plain).spared_by, nullptr);
  recipe.check_all_matched(std::vector{plain});
}

TEST(Recipe, RefusesMalformedRules) {
  for (const std::string text : {"", "model.norm.weight", "=bf16", "a=", "a=bf17", "a=raw",
                                 "re:(=bf16", "re:=bf16", "role:=bf16", "role:norms=bf16"}) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kInvalidArgument, {}, [&] { parse_rule(text); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"bf17", "fp8-block", "keep"},
               [] { parse_rule("a=bf17"); });
  expect_error(ErrorCode::kInvalidArgument, {"role:norms"}, [] { parse_rule("role:norms=bf16"); });
}

TEST(Recipe, SelectsByGlobByExpressionAndByRole) {
  const LogicalTensor up = expert(3, 17);
  EXPECT_TRUE(parse_rule("model.layers.*.up_proj.weight=bf16").matches(up));
  EXPECT_TRUE(parse_rule("model.layers.?.mlp.experts.17.*=bf16").matches(up));
  EXPECT_FALSE(parse_rule("up_proj=bf16").matches(up)) << "a glob covers the whole name";
  EXPECT_TRUE(parse_rule("re:model\\.layers\\.[0-3]\\.=bf16").matches(up));
  EXPECT_FALSE(parse_rule("re:layers=bf16").matches(up)) << "an expression matches from the start";
  EXPECT_TRUE(parse_rule("role:expert-up=bf16").matches(up));
  EXPECT_FALSE(parse_rule("role:expert-down=bf16").matches(up));
}

TEST(Recipe, TensorsOutsideTheGrammarHaveRoleOther) {
  EXPECT_TRUE(parse_rule("role:other=bf16").matches(tensor("x", SchemeId::kBf16)));
  EXPECT_FALSE(parse_rule("role:expert-up=bf16").matches(tensor("x", SchemeId::kBf16)));
  EXPECT_FALSE(parse_rule("role:other=bf16").matches(expert(3, 17)));
}

// The default rules for a model without roles.
void add_generic_rules(Recipe& recipe) {
  add_default_rules(recipe, *formats::find_family("generic"), {},
                    *formats::find_dialect("deepseek"));
}

TEST(Recipe, FirstMatchWinsAmongRuleRecipeDefault) {
  Recipe recipe = parse_recipe(
      "rules:\n- {match: 'model.layers.3.*', scheme: keep}\n- {match: '*', scheme: f32}\n", "r");
  recipe.rules.insert(recipe.rules.begin(), parse_rule("*.17.up_proj.weight=f16"));
  recipe.to = SchemeId::kBf16;
  add_generic_rules(recipe);

  EXPECT_EQ(recipe.decide(expert(3, 17)).scheme, SchemeId::kF16);
  EXPECT_EQ(recipe.decide(expert(3, 17)).rule->origin, RuleOrigin::kRule);
  const Decision kept = recipe.decide(expert(3, 18));
  ASSERT_NE(kept.rule, nullptr);
  EXPECT_EQ(kept.rule->selector.text(), "model.layers.3.*");
  EXPECT_EQ(kept.scheme, std::nullopt);
  EXPECT_EQ(recipe.decide(expert(4, 18)).scheme, SchemeId::kF32);
}

TEST(Recipe, ToSelectsOnlyWhatTheSourceHoldsQuantized) {
  Recipe recipe;
  recipe.to = SchemeId::kBf16;
  add_generic_rules(recipe);
  EXPECT_EQ(recipe.decide(expert(3, 0)).scheme, SchemeId::kBf16);
  EXPECT_EQ(recipe.decide(tensor("model.norm.weight", SchemeId::kF32, &kNormRule)).rule, nullptr);
  EXPECT_EQ(recipe.decide(tensor("blob", SchemeId::kRaw)).rule, nullptr);
}

TEST(Recipe, WithoutToNothingIsSelectedByDefault) {
  Recipe recipe;
  add_generic_rules(recipe);
  EXPECT_EQ(recipe.decide(expert(3, 0)).rule, nullptr);
}

TEST(Recipe, NamesUserRulesThatMatchNothing) {
  Recipe recipe = parse_recipe("rules: [{match: 'model.layers.99.*', scheme: keep}]", "r");
  recipe.rules.insert(recipe.rules.begin(), parse_rule("nothing.*=bf16"));
  recipe.to = SchemeId::kBf16;
  add_generic_rules(recipe);
  const std::vector<LogicalTensor> plain = {
      tensor("model.norm.weight", SchemeId::kF32, &kNormRule)};
  expect_error(ErrorCode::kInvalidArgument,
               {"--rule 'nothing.*=bf16' matches no tensor",
                "--recipe 'model.layers.99.*=keep' matches no tensor"},
               [&] { recipe.check_all_matched(plain); });

  // A rule that another one always precedes still matches something.
  Recipe shadowed;
  shadowed.rules.push_back(parse_rule("*=keep"));
  shadowed.rules.push_back(parse_rule("model.norm.weight=bf16"));
  shadowed.check_all_matched(plain);
}

TEST(Recipe, NamesUserRulesThatSelectNothingNew) {
  const auto remarks = [](std::initializer_list<const char*> rules) {
    Recipe recipe;
    for (const char* rule : rules) recipe.rules.push_back(parse_rule(rule));
    recipe.to = SchemeId::kBf16;
    add_generic_rules(recipe);
    return recipe.remarks(std::vector{expert(0, 0), expert(1, 0), expert(1, 1)});
  };
  EXPECT_EQ(remarks({"role:expert-up=nvfp4", "*.experts.1.*=fp8", "model.layers.*=bf16"}),
            (std::vector<std::string>{
                "--rule '*.experts.1.*=fp8-block' selects nothing new: its tensors are decided by "
                "--rule 'role:expert-up=nvfp4'",
                "--rule 'model.layers.*=bf16' selects nothing new: its tensors are decided by "
                "--rule 'role:expert-up=nvfp4'"}));
  EXPECT_EQ(remarks({"*.experts.1.*=fp8", "role:expert-up=nvfp4"}), std::vector<std::string>());
  EXPECT_EQ(remarks({"*.layers.0.*=fp8", "*.layers.1.*=int8", "*=keep"}),
            (std::vector<std::string>{
                "--rule '*=keep' selects nothing new: its tensors are decided by --rule "
                "'*.layers.0.*=fp8-block', --rule '*.layers.1.*=int8-channel'"}));
  EXPECT_EQ(remarks({}), std::vector<std::string>()) << "defaults may be idle";
}

TEST(Recipe, NamesLayersThatTheModelLacks) {
  const auto remarks = [](const char* rule) {
    Recipe recipe;
    recipe.rules.push_back(parse_rule(rule));
    recipe.set_layers(2);
    LogicalTensor first = expert(0, 0), mtp = expert(2, 0);
    first.layer = 0;
    mtp.layer = 2;
    return recipe.remarks(std::vector{first, mtp});
  };
  EXPECT_EQ(remarks("layers:0-99=bf16"),
            std::vector<std::string>{
                "--rule 'layers:0-99=bf16' gives layers up to 99, and the last one is 2"});
  EXPECT_EQ(remarks("layers:0,3 & role:expert-up=bf16").size(), 1U);
  for (const char* rule : {"layers:0-2=bf16", "layers:0-last=bf16", "layers:mtp=bf16", "*=bf16"})
    EXPECT_EQ(remarks(rule), std::vector<std::string>()) << rule;
}

TEST(Recipe, ReadsYaml) {
  const Recipe recipe = parse_recipe(
      "# experts stay & the rest is cast\n"
      "to: bf16\n"
      "mtp: drop\n"
      "experts: stacked\n"
      "rules:\n"
      "  - match: role:expert-up\n"
      "    scheme: keep\n"
      "  - match: \"re:model\\\\.layers\\\\.[0-2]\\\\.\"\n"
      "    scheme: fp8\n"
      "allow:\n"
      "  nan-code: ['model.layers.4.*']\n"
      "  zero-scale:\n"
      "    - '*'\n",
      "recipe.yaml");
  EXPECT_EQ(recipe.to, SchemeId::kBf16);
  EXPECT_EQ(recipe.mtp, MtpPolicy::kDrop);
  EXPECT_EQ(recipe.choices.experts, ExpertChoice::kStacked);
  ASSERT_EQ(recipe.rules.size(), 2U);
  EXPECT_EQ(recipe.rules[0].selector.text(), "role:expert-up");
  EXPECT_EQ(recipe.rules[0].origin, RuleOrigin::kRecipe);
  EXPECT_EQ(recipe.rules[1].scheme, SchemeId::kFp8Block);
  EXPECT_TRUE(recipe.rules[1].matches(tensor("model.layers.2.x", SchemeId::kBf16)));
  ASSERT_EQ(recipe.allow.nan_code.size(), 1U);
  EXPECT_TRUE(recipe.allow.nan_code[0].matches("model.layers.4.x"));
  ASSERT_EQ(recipe.allow.zero_scale.size(), 1U);
  EXPECT_TRUE(recipe.allow.unknown_tensor.empty());
}

TEST(Recipe, AnEmptyDocumentIsARecipeWithoutRules) {
  for (const std::string yaml : {"", "\n", "# nothing\n", "---\n", "{}"}) {
    EXPECT_TRUE(parse_recipe(yaml, "r").rules.empty()) << yaml;
  }
}

TEST(Recipe, JsonEqualsThatOfTheManifest) {
  Recipe recipe = parse_recipe(
      "{mtp: drop, rules: [{match: 'role:head', scheme: keep}], allow: {nan-code: ['a*']}}", "r");
  recipe.rules.insert(recipe.rules.begin(), parse_rule("b=fp8"));
  recipe.to = SchemeId::kBf16;
  add_generic_rules(recipe);
  EXPECT_EQ(recipe.to_json().dump(),
            R"({"to":"bf16","mtp":"drop",)"
            R"("choices":{"dialect":"","activations":null,"fp8_grid":null,"search":"mse",)"
            R"("via":"f32","quantize_attention":false},"rules":[)"
            R"({"match":"b","scheme":"fp8-block","origin":"--rule"},)"
            R"({"match":"role:head","scheme":"keep","origin":"--recipe"},)"
            R"({"match":"*","scheme":"bf16","origin":"default","quantized_only":true}],)"
            R"("allow":{"nan-code":["a*"]}})");
}

TEST(Recipe, RefusesWhatIsNotARecipe) {
  expect_refused("a list", {"recipe.yaml", "is a map of"});
  expect_refused("- rules", {"is a map of"});
  expect_refused("rule: []", {"line 1", "unknown key 'rule'"});
  expect_refused("to: bf16\nto: keep\n", {"line 2", "'to' is there twice"});
  expect_refused("to:\n", {"to is not a text"});
  expect_refused("to: [bf16]", {"to is not a text"});
  expect_refused("to: keep", {"no scheme 'keep'", "SELECTOR=keep", "leave --to out"});
  expect_refused("to: nvfp5", {"no scheme 'nvfp5'", "did you mean nvfp4?"});
  expect_refused("to: fp8-e5m2", {"scheme 'fp8-e5m2' is read and never written"});
  expect_refused("rules: [{match: a, scheme: int8-group}]", {"is read and never written"});
  expect_refused("to: W8A8", {"no scheme 'W8A8'", "W8A8 is int8, or fp8-channel"});
  expect_refused("to: vllm-ascend", {"that is an engine: --for vllm-ascend"});
  expect_refused("to: TensorRT-LLM", {"that is an engine: --for trtllm"});
  expect_refused("to: SGLang", {"that is an engine: --for sglang"});
  expect_refused("mtp: maybe", {"maybe"});
  expect_refused("rules:\n", {"rules is not a list"});
  expect_refused("rules: {match: a, scheme: bf16}", {"rules is not a list"});
  expect_refused("rules:\n- match\n", {"line 2", "not a map of match and scheme"});
  expect_refused("rules:\n- match: a\n", {"needs match and scheme"});
  expect_refused("rules:\n- match: a\n  schema: bf16\n", {"line 3", "unknown key 'schema'"});
  expect_refused("rules:\n- {match: a, scheme: bf16, match: b}\n", {"'match' is there twice"});
  expect_refused("rules:\n- {match: [a], scheme: bf16}\n", {"match is not a text"});
  expect_refused("rules:\n- {match: a, scheme: {b: c}}\n", {"scheme is not a text"});
  expect_refused("rules:\n- {match: '', scheme: bf16}\n", {"empty"});
  expect_refused("rules:\n- {match: 're:(', scheme: bf16}\n", {"not a regular expression"});
  expect_refused("allow: [nan-code]", {"allow is not a map"});
  expect_refused("allow: {nan-code: '*'}", {"allow.nan-code is not a list"});
  expect_refused("allow: {nan-code: [[a]]}", {"not a text"});
  expect_refused("allow: {nancode: ['*']}", {"unknown key 'nancode'"});
  expect_refused("allow: {nan-code: [a], nan-code: [b]}", {"'nan-code' is there twice"});
  expect_refused("{? [a] : b}", {"not a text"});
}

TEST(Recipe, RefusesWhatIsNotYaml) {
  expect_refused("rules: [", {"recipe.yaml", "not YAML"});
  expect_refused("to: 'bf16", {"not YAML"});
  expect_refused("to: bf16\n  mtp: drop\n", {"not YAML"});
  expect_refused("\t- a", {"recipe.yaml"});
  expect_refused("%YAML 9.9\n---\nto: bf16\n", {"recipe.yaml"});
  expect_refused("to: bf16\n---\nto: bf16\n", {"more than one YAML document"});
  expect_refused(std::string("to: \0bf16", 9), {"recipe.yaml"});
}

TEST(Recipe, RefusesAnchorsButNotAmpersandsInText) {
  expect_refused("to: &a bf16", {"anchors"});
  expect_refused("rules: &a []", {"anchors"});
  expect_refused("rules: [{match: a,scheme: bf16},&x {match: b, scheme: bf16}]", {"anchors"});
  expect_refused("&x to: bf16", {"anchors"});
  expect_refused("rules: [{match: a, scheme: *x}]", {});
  // Nine levels of nine: a billion nodes, were they ever built.
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c <= 'i'; ++c) {
    const std::string before(1, static_cast<char>(c - 1));
    bomb += std::string(1, c) + ": &" + std::string(1, c) + " [";
    for (int i = 0; i < 9; ++i) bomb += (i ? ",*" : "*") + before;
    bomb += "]\n";
  }
  expect_refused(bomb, {"anchors"});
  EXPECT_EQ(
      parse_recipe("rules: [{match: 'a &b*', scheme: keep}] # &c", "r").rules[0].selector.text(),
      "a &b*");
}

TEST(Recipe, RefusesDepthWithoutExhaustingTheStack) {
  for (const int depth : {17, 1000, 500'000}) {
    const auto n = static_cast<std::size_t>(depth);
    SCOPED_TRACE(depth);
    expect_refused("rules: " + std::string(n, '['), {"recipe.yaml"});
    expect_refused("rules: " + std::string(n, '[') + std::string(n, ']'), {"recipe.yaml"});
    expect_refused(std::string(n, '{'), {"recipe.yaml"});
  }
  std::string sequences;
  for (int i = 0; i < 100'000; ++i) sequences += "- ";
  expect_refused(sequences + "x", {"recipe.yaml"});
  std::string questions;
  for (int i = 0; i < 100'000; ++i) questions += "? ";
  expect_refused(questions + "x", {"recipe.yaml"});
  std::string indents;
  for (std::size_t i = 0; i < 1000; ++i) indents += std::string(i, ' ') + "a:\n";
  expect_refused(indents, {"recipe.yaml"});
}

TEST(Recipe, RefusesMoreThanItsLimits) {
  expect_refused(std::string((1U << 20) + 1, '#'), {"longer than 1 MiB"});
  std::string rules = "rules:\n";
  for (int i = 0; i < 10'000; ++i) rules += "- {match: a, scheme: keep}\n";
  EXPECT_EQ(parse_recipe(rules, "r").rules.size(), 10'000U);
  expect_refused(rules + "- {match: a, scheme: keep}\n", {"more than 10000 rules"});
}

TEST(Allowances, TakeAKindAndAPattern) {
  Allowances allow;
  allow.add("nan-code=model.layers.3.*");
  allow.add("zero-scale=re:a=b");
  allow.add("unknown-tensor=*");
  ASSERT_EQ(allow.zero_scale.size(), 1U);
  EXPECT_TRUE(allow.zero_scale[0].matches("a=b"));
  EXPECT_EQ(allow.unknown_tensor.size(), 1U);
  for (const std::string text :
       {"", "nan-code", "nan-code=", "=x", "nan=x", "all=*", "nan-code=re:("}) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kInvalidArgument, {}, [&] { allow.add(text); });
  }
}

}  // namespace
}  // namespace ingot::convert
