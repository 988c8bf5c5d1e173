#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/family/families.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/support/expect_error.h"

// Models that cannot be cut, and slices that cannot be joined: an error of its own for each, and no
// file under a final name.

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

// Faults in a cut that has been made.
class BadSlices : public BadSlicing {
 protected:
  static constexpr Cut kCut = {.tp = 2, .ep = 4};

  void SetUp() override {
    Conversion conversion = slicing(arch_fixture("qwen3_moe"), top(), kCut);
    conversion.plan.links = false;
    conversion.run();
  }
  std::filesystem::path top() const { return directory_ / "sliced"; }
  std::filesystem::path rank(std::uint32_t number) const {
    return rank_directory(top(), number, kCut);
  }
  void expect_unmerged(ErrorCode code, std::initializer_list<std::string> fragments) {
    expect_refused(keeping(top(), directory_ / "merged"), code, fragments);
  }
  static void edit(const std::filesystem::path& json, const std::string& from,
                   const std::string& to) {
    std::string text = read_text_file(json, 1 << 24);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    ASSERT_EQ(text.find(from, at + 1), text.npos) << from << " is there twice";
    text.replace(at, from.size(), to);
    write_text_file(json, text);
  }
};

TEST_F(BadSlices, ARankThatIsMissing) {
  std::filesystem::remove_all(rank(2));
  expect_unmerged(kNotFound, {"rank-00002-of-00004", "is missing, one of 4 ranks"});
  std::filesystem::remove(top() / "ingot.json");
  expect_unmerged(kNotFound, {"rank-00002-of-00004", "is missing"});
}

TEST_F(BadSlices, ARankOfAnotherRun) {
  Conversion other = slicing(arch_fixture("qwen3_moe"), directory_ / "other", kCut);
  other.plan.slicing.expert_map = "[7, 6, 5, 4, 3, 2, 1, 0]";
  other.run();
  std::filesystem::remove_all(rank(1));
  std::filesystem::copy(rank_directory(directory_ / "other", 1, kCut), rank(1),
                        std::filesystem::copy_options::recursive);
  expect_unmerged(kMismatch, {"rank-00001-of-00004", "another run", "its hash is"});
  // Gathered by hand, there is no manifest above them to ask.
  std::filesystem::remove(top() / "ingot.json");
  expect_unmerged(
      kMismatch, {"rank-00001-of-00004", "belongs to another conversion than rank-00000-of-00004"});
}

TEST_F(BadSlices, RanksThatChangedPlaces) {
  std::filesystem::rename(rank(1), top() / "away");
  std::filesystem::rename(rank(3), rank(1));
  std::filesystem::rename(top() / "away", rank(3));
  expect_unmerged(kMismatch, {"rank-00001-of-00004"});
  std::filesystem::remove(top() / "ingot.json");
  expect_unmerged(kMismatch, {"is of rank 3, in the place of rank 1"});
}

// The norm of layer 1 is whole on all four, the head on ranks 1 and 3.
TEST_F(BadSlices, AReplicaOfWhichOneByteChanged) {
  const auto damage = [&](std::uint32_t number, const std::string& tensor) {
    const OutputTensor found = read_output(rank(number)).at(tensor);
    const auto path = rank(number) / found.file;
    const Fd file = Fd::open_for_writing(path, 02);
    for (const formats::StoredTensor& stored : formats::read_safetensors_header(file).tensors) {
      if (stored.name != tensor) continue;
      std::array<std::byte, 1> byte{};
      file.read_exact(byte, stored.offset + 17);
      byte[0] ^= std::byte{1};
      file.write_exact(byte, stored.offset + 17);
    }
  };
  damage(2, "model.layers.1.input_layernorm.weight");
  expect_unmerged(kMismatch,
                  {"model.layers.1.input_layernorm.weight",
                   "differs between rank-00000-of-00004 and rank-00002-of-00004 at byte 17"});
  damage(2, "model.layers.1.input_layernorm.weight");
  damage(3, "lm_head.weight");
  std::filesystem::remove_all(directory_ / "merged");
  expect_unmerged(
      kMismatch,
      {"lm_head.weight", "differs between rank-00001-of-00004 and rank-00003-of-00004 at byte 17"});
  damage(3, "lm_head.weight");
  std::filesystem::remove_all(directory_ / "merged");
  keeping(top(), directory_ / "merged").run();
}

TEST_F(BadSlices, ATopologyThatContradictsTheManifest) {
  const std::string original = read_text_file(top() / "ingot.json", 1 << 24);
  edit(top() / "ingot.json", "\"n_ranks\": 4", "\"n_ranks\": 8");
  expect_unmerged(kMismatch, {"ingot.json", "topology contradicts itself", "n_ranks is 8"});
  write_text_file(top() / "ingot.json", original);
  edit(rank(2) / "ingot.json", "\"tp_rank\": 0", "\"tp_rank\": 1");
  expect_unmerged(kMismatch, {"rank-00002-of-00004", "was changed"});
  std::filesystem::remove(top() / "ingot.json");
  expect_unmerged(kMismatch, {"rank-00002-of-00004", "tp_rank is 1, of rank 2 it is 0"});
}

TEST_F(BadSlices, AFileThatWasCutShort) {
  const auto path = rank(1) / "tp-01-of-02-00001-of-00001.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  expect_unmerged(kMismatch, {"rank-00001-of-00004/tp-01-of-02-00001-of-00001.safetensors"});
}

TEST_F(BadSlices, WeightsThatNoManifestKnows) {
  std::filesystem::copy_file(rank(0) / "all-00001-of-00001.safetensors",
                             rank(0) / "extra.safetensors");
  expect_unmerged(kMismatch, {"rank-00000-of-00004/extra.safetensors", "not named by"});
}

}  // namespace
}  // namespace ingot::testing
