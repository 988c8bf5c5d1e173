#include "formats/family/families.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/support/test.h"

// Models that cannot be cut: an error of its own for each, and no file under a final name.

namespace ingot::testing {
namespace {

using shard::TpFit;
using enum ErrorCode;

class BadSlicing : public ::testing::Test {
 protected:
  static void expect_refused(Conversion conversion, ErrorCode code,
                             std::initializer_list<std::string> fragments) {
    expect_error(code, fragments, [&] { conversion.run(); });
    for (const std::string& name : top_level(conversion.output)) EXPECT_EQ(name, ".ingot-partial");
  }
  void expect_uncut(const std::filesystem::path& model, const Cut& cut, ErrorCode code,
                    std::initializer_list<std::string> fragments) {
    SCOPED_TRACE(cut.name());
    expect_refused(slicing(model, directory_ / "refused", cut), code, fragments);
    EXPECT_FALSE(std::filesystem::exists(directory_ / "refused")) << "before anything is written";
  }
  void expect_map_refused(const std::string& map, std::initializer_list<std::string> fragments) {
    SCOPED_TRACE(map);
    Conversion conversion = slicing(arch_fixture("qwen3_moe"), directory_ / "refused", {.ep = 2});
    conversion.plan.slicing.expert_map = map;
    conversion.plan.slicing.expert_map_where = "map.json";
    expect_refused(conversion, kInvalidArgument, fragments);
    EXPECT_FALSE(std::filesystem::exists(directory_ / "refused"));
  }
  void expect_layers_refused(const std::string& layers,
                             std::initializer_list<std::string> fragments) {
    SCOPED_TRACE(layers);
    Conversion conversion = slicing(tiny_v32(), directory_ / "refused", {.pp = 2});
    conversion.plan.slicing.stages = layers;
    expect_refused(conversion, kInvalidArgument, fragments);
    EXPECT_FALSE(std::filesystem::exists(directory_ / "refused"));
  }

  TempDir directory_;
};

TEST_F(BadSlicing, HeadsThatTheRanksCannotShare) {
  expect_uncut(tiny_v32(), {.tp = 3}, kInvalidArgument,
               {"8 attention heads cannot be cut for --tp 3", "divisor of 8"});
  expect_uncut(tiny_v32(), {.tp = 16, .fit = TpFit::kPad}, kInvalidArgument,
               {"8 attention heads", "--tp 16"});
  formats::write_synthetic_checkpoint(directory_ / "model",
                                      {.family = formats::find_family("qwen3_moe"),
                                       .size = formats::SynthSize::kTiny,
                                       .heads = 12,
                                       .fp8 = false});
  EditableCheckpoint model = EditableCheckpoint::load(directory_ / "model");
  model.config["num_key_value_heads"] = 4;
  for (auto& [name, tensor] : model.tensors) {
    if (name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight"))
      model.put_zeros(name, tensor.dtype, {4 * 128, tensor.shape[1]});
  }
  std::filesystem::create_directory(directory_ / "edited");
  model.write(directory_ / "edited");
  expect_uncut(directory_ / "edited", {.tp = 6}, kInvalidArgument,
               {"4 KV heads can neither be cut nor replicated evenly for --tp 6"});
}

TEST_F(BadSlicing, ExpertsThatTheRanksCannotShare) {
  expect_uncut(tiny_v32(), {.ep = 3}, kInvalidArgument,
               {"16 experts cannot be dealt evenly to --ep 3", "--expert-map"});
  expect_uncut(tiny_v32(), {.ep = 32}, kInvalidArgument, {"16 experts", "--ep 32"});
}

TEST_F(BadSlicing, AVocabularyThatTheRanksCannotShare) {
  EditableCheckpoint model = EditableCheckpoint::load(arch_fixture("qwen3_moe"));
  model.config["vocab_size"] = 510;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    model.put_zeros(name, formats::DType::kBf16, {510, 128});
  std::filesystem::create_directory(directory_ / "model");
  model.write(directory_ / "model");
  expect_uncut(directory_ / "model", {.tp = 4}, kUnsupported,
               {"embed_tokens.weight", "510 rows cannot be cut for 4 ranks", "--tp-fit pad"});
}

TEST_F(BadSlicing, WidthsThatTheRanksCannotShare) {
  expect_uncut(arch_fixture("qwen3_moe"), {.ep = 2, .etp = 3}, kUnsupported,
               {"experts.0.gate_proj.weight", "64 rows cannot be cut for 3 ranks",
                "experts.0.down_proj.weight", "64 columns cannot be cut for 3 ranks", "--etp 2"});
}

TEST_F(BadSlicing, CutsThroughABlockOrAGroup) {
  expect_uncut(tiny_v32(), {.tp = 2}, kUnsupported,
               {"640 rows / 2 ranks = 320, the FP8 block has 128 rows",
                "--tp-fit retile, pad or bf16", "like it"});
  expect_uncut(tiny_v32(), {.tp = 2, .fit = TpFit::kPad}, kUnsupported, {"q_b_proj", "retile"});
  Conversion groups =
      slicing(tiny_v32(), directory_ / "groups", {.ep = 2, .etp = 16, .fit = TpFit::kRetile});
  groups.recipe.to = formats::SchemeId::kNvfp4;
  expect_refused(groups, kUnsupported,
                 {"128 columns / 16 ranks = 8, the nvfp4 group has 16 columns"});
  // The rows of a rank end between blocks of 128, and ModelOpt's file has no place for more scales.
  Conversion spread = slicing(tiny_bf16(), directory_ / "spread", {.tp = 4, .fit = TpFit::kPad});
  spread.recipe.to = formats::SchemeId::kFp8Block;
  spread.recipe.choices.dialect = "modelopt";
  spread.recipe.allow.add("engine-refuses=*");
  spare_attention(spread.recipe);
  expect_refused(spread, kUnsupported, {"between blocks", "as ModelOpt spreads them"});
}

TEST_F(BadSlicing, RefusesMapsThatLoseOrInventExperts) {
  expect_map_refused("[0, 1, 2, 3, 4, 5, 6, 6]",
                     {"map.json", "expert 7 is in no slot", "expert 6 is in 2 slots"});
  expect_map_refused("[0, 1, 2, 3, 4, 5, 6, 8]", {"map.json", "slot 7 holds 8", "0 to 7"});
  expect_map_refused("[0, 1, 2, 3, 4, 5, 6, 7, 7, 0]", {"expert 0 is in 2 slots", "redundant"});
  expect_map_refused(R"({"slots": [0, 1, 2, 3, 4, 5, 6, 7], "slots_per_rank": [5, 3]})",
                     {"different numbers of slots", "uneven"});
  expect_map_refused(R"({"layers": {"0": [0, 1, 2, 3, 4, 5, 6, 7]}})", {"no list for layer 1"});
}

TEST_F(BadSlicing, AFamilyOfWhichNothingIsKnown) {
  Conversion conversion = slicing(tiny_bf16(), directory_ / "refused", {.tp = 2});
  conversion.family = "generic";
  expect_refused(conversion, kUnsupported, {"family generic", "--family"});
}

TEST_F(BadSlicing, StagesThatAreNotEveryLayerOnce) {
  expect_layers_refused("0-1,3-4", {"a stage from layer 3, it must begin with layer 2"});
  expect_layers_refused("0-2,2-4", {"a stage from layer 2, it must begin with layer 3"});
  expect_layers_refused("0-2,3-5", {"names layer 5, the model has 5 main layers"});
  expect_layers_refused("0-2,3-3", {"ends with layer 3, the last main layer is 4"});
  expect_layers_refused("0-0,1-1,2-4", {"has 3 stages, --pp is 2"});
  expect_layers_refused("0-2;3-4", {"'0-2;3-4', which is no range"});
  expect_uncut(tiny_v32(), {.pp = 6}, kInvalidArgument,
               {"--pp 6 needs a layer for each stage, the model has 5"});
}

}  // namespace
}  // namespace ingot::testing
