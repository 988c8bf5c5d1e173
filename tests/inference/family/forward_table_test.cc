#include "formats/family/families.h"
#include "formats/family/forward.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "inference/model/recurrent/state_space.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"

// Forward passes that a family's file says, from a file of a user.

namespace ingot::inference {
namespace {

using namespace ingot::testing;
using formats::Json;
using formats::ModelConfig;

const std::vector<JsonEdit> kExperts = {
    {"/num_local_experts", 5}, {"/num_experts_per_tok", 2}, {"/moe_intermediate_size", 8}};

/// A family like llama whose file has this forward pass.
const formats::Family& family_with(const std::string& forward) {
  static int n = 0;
  const std::string name = fmt::format("made_{}", ++n);
  return formats::add_family(
      fmt::format("family: {}\nmodel_types: [{}]\nlike: llama\nforward: {}\n", name, name, forward),
      name);
}

ModelConfig config_with(const std::vector<JsonEdit>& edits = {}) {
  const auto json = formats::read_json_file(
      INGOT_SOURCE_DIR "/tests/golden/forward/llama/checkpoint/config.json", 1 << 20);
  return formats::parse_model_config(edited(json, edits).dump(), "config.json");
}

ModelSpec spec_with(const std::string& forward, const std::vector<JsonEdit>& edits = {}) {
  return model_spec(family_with(forward), config_with(edits));
}

void expect_refused(const std::string& forward, std::initializer_list<std::string> fragments) {
  expect_error(ErrorCode::kInvalidArgument, fragments, [&] { spec_with(forward); });
}

TEST(ForwardTable, ReadsExpressionsAndWords) {
  const ModelSpec spec = spec_with(
      "{mixer: {kind: grouped, head_dim: 2 * head, head_norms: all, window: seen default 9}}");
  const auto& attention = *spec.find<GroupedSpec>();
  EXPECT_EQ(attention.head_dim, 28U);
  EXPECT_EQ(attention.norms, HeadNorm::kAllHeads);
  EXPECT_EQ(attention.window, 9U);
  EXPECT_EQ(attention.rope.dim, 28U);
}

TEST(ForwardTable, TakesTheFirstMixerThatHolds) {
  const std::string forward =
      "{mixer: [{layers: {layer_types: near}, kind: grouped, head_dim: head, window: 8}, "
      "{kind: grouped, head_dim: head}]}";
  const ModelSpec spec = spec_with(forward, {{"/layer_types", {"far", "near"}}});
  EXPECT_EQ(spec.layers[0].find<GroupedSpec>()->window, 0U);
  EXPECT_EQ(spec.layers[1].find<GroupedSpec>()->window, 8U);
}

TEST(ForwardTable, HasANumberForEachLayer) {
  const ModelSpec spec = spec_with(
      "{mixer: {kind: grouped, head_dim: head, theta: bases}, mlp: {limit: limits, limits_silu: "
      "true, slope: 2}}",
      {{"/bases", {100, 200}}, {"/limits", {0, 3.5}}});
  EXPECT_NE(spec.layers[0].find<GroupedSpec>()->rope, spec.layers[1].find<GroupedSpec>()->rope);
  EXPECT_FALSE(spec.layers[0].find<MlpSpec>()->gate.limit);
  EXPECT_EQ(spec.layers[1].find<MlpSpec>()->gate.limit, 3.5F);
  EXPECT_EQ(spec.layers[1].find<MlpSpec>()->gate.alpha, 2.0F);
}

TEST(ForwardTable, ReadsFactorsAndCaps) {
  const ModelSpec spec = spec_with(
      "{mixer: {kind: grouped, head_dim: head, scaled_by_root_of: scalar, score_cap: cap}, "
      "mlp: {gelu: true, width: wide}, model: {embedding_root: true, residual_factor: res, "
      "logit_factor: 3, logits_over: over default 2, layer_norms: true}}",
      {{"/scalar", 16}, {"/cap", 50}, {"/res", 0.25}, {"/wide", 77}});
  const auto& attention = *spec.find<GroupedSpec>();
  EXPECT_EQ(attention.softmax_scale, 0.25F);
  EXPECT_EQ(attention.score_cap, 50.0F);
  EXPECT_EQ(spec.find<MlpSpec>()->width, 77U);
  EXPECT_TRUE(spec.find<MlpSpec>()->gate.is_gelu);
  EXPECT_EQ(spec.layers[0].residual_factor, 0.25F);
  EXPECT_EQ(spec.ends.embedding_factor, std::sqrt(84.0F));
  EXPECT_TRUE(spec.ends.rounds_embedding_factor);
  EXPECT_EQ(spec.ends.logit_factor, 1.5F);
  EXPECT_TRUE(spec.norm.is_layer);
  const ModelSpec other = spec_with(
      "{mixer: {kind: grouped, head_dim: head, softmax_scale: 0.5, score_cap: cap}, "
      "model: {embedding_factor: 12}}");
  EXPECT_EQ(other.find<GroupedSpec>()->softmax_scale, 0.5F);
  EXPECT_EQ(other.find<GroupedSpec>()->score_cap, std::nullopt);
  EXPECT_EQ(other.ends.embedding_factor, 12.0F);
}

TEST(ForwardTable, LongContextsHaveFactorsOfTheirOwn) {
  const std::string forward = "{mixer: {kind: grouped, head_dim: head}}";
  const auto rope = [&](const std::vector<JsonEdit>& edits) {
    std::vector<JsonEdit> all = {{"/rope_scaling",
                                  {{"type", "longrope"},
                                   {"short_factor", {1, 1, 1, 1, 1, 1, 2}},
                                   {"long_factor", {4, 1, 1, 1, 1, 1, 1}}}},
                                 {"/original_max_position_embeddings", 128},
                                 {"/rope_theta", 16}};
    all.insert(all.end(), edits.begin(), edits.end());
    return spec_with(forward, all).find<GroupedSpec>()->rope;
  };
  const RopeSpec wide = rope({});
  EXPECT_EQ(wide.freqs[0], 0.25F);
  EXPECT_NEAR(wide.freqs[6], std::pow(16.0, -12.0 / 14), 1e-6);
  EXPECT_NEAR(wide.magnitude, std::sqrt(1 + 5.0 / 7), 1e-6) << "4096 is 128 x 2^5, 128 is 2^7";
  const RopeSpec narrow = rope({{"/max_position_embeddings", 128}});
  EXPECT_EQ(narrow.freqs[0], 1.0F);
  EXPECT_NEAR(narrow.freqs[6], std::pow(16.0, -12.0 / 14) / 2, 1e-6);
  EXPECT_EQ(narrow.magnitude, 1.0F);
  expect_error(ErrorCode::kCorrupt, {"1 factors for 7 pairs"}, [&] {
    rope({{"/rope_scaling/long_factor", {4}}});
  });
  expect_error(ErrorCode::kCorrupt, {"'long_factor' of rope has 0"}, [&] {
    rope({{"/rope_scaling/long_factor", {0}}});
  });
  expect_error(ErrorCode::kCorrupt, {"'original_max_position_embeddings'"}, [&] {
    rope({{"/original_max_position_embeddings", nullptr}});
  });
}

TEST(ForwardTable, ListsBlocksOfALayer) {
  const std::string blocks =
      "{blocks: [{when: kinds, kind: state-space, heads: 4, head_dim: 2, state: 3, kernel: 2}, "
      "{when: 1 - kinds, kind: mlp}, {kind: mlp, number: 1, input_of: 0}]}";
  const ModelSpec spec = spec_with(blocks, {{"/kinds", {1, 0}}});
  ASSERT_EQ(spec.layers[0].blocks.size(), 2U);
  EXPECT_EQ(spec.layers[0].find<StateSpaceSpec>()->state, 3U);
  EXPECT_EQ(spec.layers[1].find<StateSpaceSpec>(), nullptr);
  EXPECT_EQ(spec.layers[1].blocks[1].number, 1U);
  EXPECT_EQ(spec.layers[1].blocks[1].input_of, 0U);
}

TEST(ForwardTable, TranslatesWordsOfTheConfig) {
  const std::string forward =
      "{mixer: {kind: grouped, head_dim: head}, "
      "mixture: {score: {key: how, absent: one, one: softmax, each: sigmoid}}}";
  std::vector<JsonEdit> edits = kExperts;
  EXPECT_EQ(spec_with(forward, edits).router()->score, GateScore::kSoftmax);
  edits.push_back({"/how", "each"});
  EXPECT_EQ(spec_with(forward, edits).router()->score, GateScore::kSigmoid);
  edits.back() = {"/how", "none"};
  expect_error(ErrorCode::kUnsupported, {"'how' is 'none'", "one, each"},
               [&] { spec_with(forward, edits); });
}

TEST(ForwardTable, RefusesConfigsThatLackWhatItNeeds) {
  const std::string forward =
      "{needs: [seen, most default 1], mixer: {kind: grouped, head_dim: head, window: seen}}";
  EXPECT_EQ(spec_with(forward, {{"/seen", 5}}).find<GroupedSpec>()->window, 5U);
  expect_error(ErrorCode::kCorrupt, {"'seen' is missing or 0"}, [&] { spec_with(forward); });
  expect_error(ErrorCode::kCorrupt, {"'most' is missing or 0"}, [&] {
    spec_with(forward, {{"/seen", 5}, {"/most", 0}});
  });
  expect_error(ErrorCode::kCorrupt, {"'seen' is 2147483648", "at most"}, [&] {
    spec_with(forward, {{"/seen", 2147483648}});
  });
}

TEST(ForwardTable, RefusesValuesThatTheFileRulesOut) {
  const std::string forward =
      "{only: {use_it: false, how: well, n: 1}, mixer: {kind: grouped, head_dim: head}}";
  EXPECT_EQ(spec_with(forward).n_main, 2U);
  EXPECT_EQ(spec_with(forward, {{"/use_it", false}, {"/how", "well"}, {"/n", 1}}).n_main, 2U);
  expect_error(ErrorCode::kUnsupported, {"'use_it' is true"}, [&] {
    spec_with(forward, {{"/use_it", true}});
  });
  expect_error(ErrorCode::kUnsupported, {"'n' is 2"}, [&] { spec_with(forward, {{"/n", 2}}); });
  expect_error(ErrorCode::kUnsupported, {"'how' is 'badly'", "'well'"}, [&] {
    spec_with(forward, {{"/how", "badly"}});
  });
}

TEST(ForwardTable, RefusesNumbersBeyondTheirLimits) {
  const std::string forward =
      "{mixer: {kind: grouped, head_dim: head, theta: base default 10, sinks: sunk}, "
      "mlp: {slope: steep default 1, limit: top}}";
  for (const char* edit : {"/base -1", "/steep -1", "/top -1", "/steep 1e10", "/top \"high\""})
    expect_error(ErrorCode::kCorrupt, {"no number from 0"}, [&] { spec_with(forward, {edit}); });
}

TEST(ForwardTable, RefusesValuesOfTheWrongType) {
  const std::string forward =
      "{only: {use_it: false, n: 1, other: none}, mixer: {kind: grouped, head_dim: head, "
      "window: outer.seen, sinks: sunk * (most - 1)}, mlp: {limit: top}}";
  for (const Json& none : {Json(0), Json(false), Json()})
    EXPECT_EQ(spec_with(forward, {{"/other", none}}).n_main, 2U);
  expect_error(ErrorCode::kUnsupported, {"'other' is 'x'"}, [&] {
    spec_with(forward, {{"/other", "x"}});
  });
  for (const char* edit : {"/sunk 0", "/sunk 1", "/sunk \"x\"", "/use_it 0", "/use_it 1",
                           "/n \"x\"", "/n true", "/n -1", "/outer {\"seen\": true}", "/outer 5"})
    expect_error(ErrorCode::kCorrupt, {}, [&] { spec_with(forward, {edit}); });
  EXPECT_EQ(spec_with(forward, {{"/top", 0}}).find<MlpSpec>()->gate.limit, 0.0F);
}

TEST(ForwardTable, NamesTheLineOfWhatIsUnknown) {
  expect_refused("{mixer: {kind: gruoped}}", {"line 4", "'gruoped'", "grouped"});
  expect_refused("{mixer: {kind: grouped, head_dim: head, windw: 8}}",
                 {"line 4", "'windw'", "window"});
  expect_refused("{mixer: {kind: grouped, head_dim: head, head_norms: some}}", {"'some'"});
  expect_refused("{mixer: {kind: grouped, head_dim: head +}}", {"line 4"});
  expect_refused("{mixer: {head_dim: head}}", {"lacks its kind"});
  expect_refused("{mixture: {score: softmax}}", {"line 4", "mixer"});
  expect_refused("{mixer: {kind: grouped}, mtp: dropped}", {"line 4", "'dropped'"});
  expect_error(ErrorCode::kUnsupported, {"5 experts"},
               [] { spec_with("{mixer: {kind: grouped, head_dim: head}}", kExperts); });
}

TEST(ForwardTable, FlagsAskForAbsentKeys) {
  const auto has_layer_norms = [](const std::string& flag) {
    const std::string model = fmt::format("{{layer_norms: {}}}", flag);
    return spec_with(fmt::format("{{mixer: {{kind: grouped, head_dim: head}}, model: {}}}", model))
        .norm.is_layer;
  };
  EXPECT_TRUE(has_layer_norms("lacks some_key"));
  EXPECT_FALSE(has_layer_norms("lacks hidden_size"));
  EXPECT_TRUE(has_layer_norms("lacks hidden_act.inner"));
}

TEST(ForwardTable, IsNotInheritedUnlessSaid) {
  const formats::Family& silent =
      formats::add_family("family: silent\nmodel_types: [silent]\nlike: llama\n", "silent");
  expect_error(ErrorCode::kUnsupported, {"no forward pass for family silent"},
               [&] { model_spec(silent, config_with()); });
  EXPECT_EQ(spec_with("inherited").n_main, 2U);
}

TEST(ForwardTable, EveryFileOfTheProgramIsUnderstood) {
  for (const formats::FamilyEntry& entry : formats::family_entries()) {
    const formats::Family& family = *formats::find_family(entry.name);
    if (family.forward == nullptr) continue;
    try {
      model_spec(family, config_with(family.forward->mixture ? kExperts : std::vector<JsonEdit>()));
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInvalidArgument) << entry.name << ": " << error.message();
    }
  }
}

}  // namespace
}  // namespace ingot::inference
