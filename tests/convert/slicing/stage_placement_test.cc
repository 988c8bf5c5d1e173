#include <regex>

#include "tests/check/editable_checkpoint.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/convert/slicing/stacked_model.h"
#include "tests/support/test.h"

// Which tensors a pipeline stage has.

namespace ingot::testing {
namespace {

using namespace ::testing;
using ::testing::ElementsAre;
using Numbers = std::vector<std::uint32_t>;

class StagePlacement : public ::testing::Test {
 protected:
  void cut_into(const std::filesystem::path& model, const Cut& cut,
                const std::string& layers = {}) {
    cut_ = cut;
    Conversion conversion = slicing(model, directory_ / "sliced", cut);
    conversion.plan.slicing.stages = layers;
    conversion.run();
    expect_each_accepted_alone(conversion.output, cut);
    keeping(conversion.output, directory_ / "merged").run();
    EXPECT_EQ(first_difference(tensor_bytes(directory_ / "merged"), tensor_bytes(model)), "");
  }
  std::filesystem::path rank(std::uint32_t number) const {
    return rank_directory(directory_ / "sliced", number, cut_);
  }
  // Layers of which a rank has a tensor.
  std::set<std::size_t> layers_of(std::uint32_t number) const {
    std::set<std::size_t> layers;
    for (const std::string& name : names_in(rank(number))) {
      std::smatch found;
      if (std::regex_search(name, found, std::regex(R"(^model\.layers\.(\d+)\.)")))
        layers.insert(std::stoul(found[1].str()));
    }
    return layers;
  }
  // Tensors of no layer that a rank has.
  std::set<std::string> ends_of(std::uint32_t number) const {
    std::set<std::string> names = names_in(rank(number));
    std::erase_if(names, [](const std::string& name) { return name.starts_with("model.layers."); });
    return names;
  }

  TempDir directory_;
  Cut cut_;
};

// Five layers, and one for multi-token prediction with an embedding of its own.
TEST_F(StagePlacement, FollowsTheGivenLayers) {
  cut_into(tiny_v32(), {.pp = 3}, "0-0,1-3,4-4");
  EXPECT_THAT(layers_of(0), ElementsAre(0));
  EXPECT_THAT(layers_of(1), ElementsAre(1, 2, 3));
  EXPECT_THAT(layers_of(2), ElementsAre(4, 5)) << "the MTP layer is on the last stage";
  EXPECT_THAT(ends_of(0), ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(ends_of(1), ElementsAre());
  EXPECT_THAT(ends_of(2), UnorderedElementsAre("lm_head.weight", "model.norm.weight"));
  const formats::RankRecord middle = record_of_rank(rank(1)), last = record_of_rank(rank(2));
  EXPECT_EQ(middle.first_layer, 1U);
  EXPECT_EQ(middle.end_layer, 4U);
  EXPECT_FALSE(middle.has_embedding || middle.has_head);
  EXPECT_EQ(last.end_layer, 6U);
  EXPECT_TRUE(last.has_head);
}

TEST_F(StagePlacement, TellsOfHeadsWithoutTheNamesOfNorms) {
  const std::filesystem::path model = directory_ / "model";
  std::filesystem::copy(arch_fixture("qwen3_moe"), model, std::filesystem::copy_options::recursive);
  std::ofstream(model / "ingot-family.yaml")
      << "family: odd\nlike: qwen3_moe\ntensors:\n"
         "- {name: model.norm.weight, role: other}\n"
         "- {name: model.embed_tokens.weight, role: other}\n";
  cut_into(model, {.tp = 2});
  EXPECT_TRUE(record_of_rank(rank(1)).has_embedding);
  EXPECT_TRUE(record_of_rank(rank(1)).has_head);
}

TEST_F(StagePlacement, IsAlikeOnAllRanksOfAStage) {
  cut_into(arch_fixture("qwen3_moe"), {.tp = 2, .pp = 2}, "0-1,2-2");
  for (const std::uint32_t number : {0U, 1U}) EXPECT_THAT(layers_of(number), ElementsAre(0, 1));
  for (const std::uint32_t number : {2U, 3U}) {
    EXPECT_THAT(layers_of(number), ElementsAre(2));
    EXPECT_EQ(record_of_rank(rank(number)).stage, 1U);
    EXPECT_EQ(record_of_rank(rank(number)).tp_rank, number - 2);
  }
}

// Against every way to divide five layers into three stages.
TEST_F(StagePlacement, IsBalancedByBytesUnlessGiven) {
  cut_into(tiny_v32(), {.pp = 3});
  std::vector<std::size_t> bytes(5, 0);
  for (const auto& [name, tensor] : read_output(tiny_v32())) {
    std::smatch found;
    const bool is_in_layer =
        std::regex_search(name, found, std::regex(R"(^model\.layers\.(\d+)\.)"));
    // The MTP layer and the head are with the last layer, the embedding with the first.
    const std::size_t layer = is_in_layer ? std::min<std::size_t>(std::stoul(found[1].str()), 4)
                              : name.find("embed") != name.npos ? 0
                                                                : 4;
    if (!name.ends_with("_scale_inv")) bytes[layer] += tensor.bytes.size();
  }
  const auto largest = [&](std::size_t second, std::size_t third) {
    std::size_t most = 0;
    for (const auto& [begin, end] :
         {std::pair<std::size_t, std::size_t>{0, second}, {second, third}, {third, 5}}) {
      std::size_t sum = 0;
      for (std::size_t layer = begin; layer < end; ++layer) sum += bytes[layer];
      most = std::max(most, sum);
    }
    return most;
  };
  std::size_t best = ~std::size_t{0};
  for (std::size_t second = 1; second < 4; ++second) {
    for (std::size_t third = second + 1; third < 5; ++third)
      best = std::min(best, largest(second, third));
  }
  const auto manifest = formats::read_manifest(directory_ / "sliced");
  const auto& stages = manifest->slicing->stage_layers;
  ASSERT_EQ(stages.size(), 4U);
  EXPECT_EQ(largest(stages[1], stages[2]), best);
}

TEST_F(StagePlacement, TiedEmbeddingIsOnBothEnds) {
  EditableCheckpoint tied = EditableCheckpoint::load(arch_fixture("qwen3_moe"));
  tied.config["tie_word_embeddings"] = true;
  tied.tensors.erase("lm_head.weight");
  std::filesystem::create_directory(directory_ / "tied");
  tied.write(directory_ / "tied");
  cut_into(directory_ / "tied", {.tp = 2, .pp = 3});
  for (const std::uint32_t number : {0U, 1U})
    EXPECT_THAT(ends_of(number), ElementsAre("model.embed_tokens.weight"));
  for (const std::uint32_t number : {2U, 3U}) EXPECT_THAT(ends_of(number), ElementsAre());
  for (const std::uint32_t number : {4U, 5U}) {
    EXPECT_THAT(ends_of(number),
                UnorderedElementsAre("model.embed_tokens.weight", "model.norm.weight"));
    EXPECT_TRUE(record_of_rank(rank(number)).has_embedding);
  }
}

// Its config promises an MTP layer that was not saved with it.
TEST_F(StagePlacement, EmbeddingWithoutMtpIsOnTheFirstStage) {
  ASSERT_EQ(formats::read_json_file(arch_fixture("deepseek_v3") / "config.json", 1 << 20)
                .at("num_nextn_predict_layers"),
            1);
  cut_into(arch_fixture("deepseek_v3"), {.pp = 3});
  EXPECT_THAT(ends_of(0), ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(ends_of(2), UnorderedElementsAre("lm_head.weight", "model.norm.weight"));
}

// The experts of a rank, and its slots in its manifest. The model has 8 experts in layers 1 and 2,
// and one shared expert.

const std::filesystem::path& model() {
  static const std::filesystem::path path = arch_fixture("glm_moe_dsa");
  return path;
}

class ExpertPlacement : public ::testing::Test {
 protected:
  // Cuts the model by a map, checks every rank by itself, and merges it back.
  void cut_by(const std::string& map, Cut cut, bool redundant = false, bool uneven = false) {
    cut_ = cut;
    Conversion conversion = slicing(model(), directory_ / "sliced", cut);
    conversion.plan.slicing.expert_map = map;
    conversion.plan.slicing.expert_map_where = "map.json";
    conversion.plan.slicing.redundant_experts = redundant;
    conversion.plan.slicing.uneven_experts = uneven;
    conversion.run();
    expect_each_accepted_alone(conversion.output, cut);
    keeping(conversion.output, directory_ / "merged").run();
    EXPECT_EQ(first_difference(tensor_bytes(directory_ / "merged"), tensor_bytes(model())), "");
  }
  std::filesystem::path rank(std::uint32_t number) const {
    return rank_directory(directory_ / "sliced", number, cut_);
  }
  // Experts of a layer whose three weights are all on a rank.
  Numbers held(std::uint32_t number, std::uint32_t layer = 1) const {
    const std::set<std::string> names = names_in(rank(number));
    Numbers experts;
    for (std::uint32_t expert = 0; expert < 8; ++expert) {
      std::size_t n = 0;
      for (const char* part : {"gate", "up", "down"}) {
        n += names.count(
            fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", layer, expert, part));
      }
      EXPECT_TRUE(n == 0 || n == 3) << "expert " << expert << " has " << n << " parts";
      if (n == 3) experts.push_back(expert);
    }
    return experts;
  }
  bool has_shared(std::uint32_t number) const {
    return names_in(rank(number)).contains("model.layers.1.mlp.shared_experts.up_proj.weight");
  }
  Numbers slots(std::uint32_t number, std::size_t entry = 0) const {
    return record_of_rank(rank(number)).experts.at(entry).slots;
  }

  TempDir directory_;
  Cut cut_;
};

TEST_F(ExpertPlacement, IsContiguousWithoutAMap) {
  cut_by("", {.ep = 4});
  for (std::uint32_t number = 0; number < 4; ++number) {
    EXPECT_THAT(held(number), ElementsAre(2 * number, 2 * number + 1));
    EXPECT_THAT(slots(number), ElementsAre(2 * number, 2 * number + 1));
  }
}

TEST_F(ExpertPlacement, FollowsAPermutationOfTheSlots) {
  cut_by("[5, 0, 7, 2, 1, 6, 3, 4]", {.tp = 2, .ep = 4});
  EXPECT_THAT(held(0), ElementsAre(0, 5));
  EXPECT_THAT(held(1), ElementsAre(2, 7));
  EXPECT_THAT(held(2), ElementsAre(1, 6));
  EXPECT_THAT(held(3), ElementsAre(3, 4));
  EXPECT_THAT(slots(0), ElementsAre(5, 0)) << "in the order of the slots";
  EXPECT_THAT(record_of_rank(rank(0)).experts.at(0).held, ElementsAre(0, 5));
}

TEST_F(ExpertPlacement, StoresAnExpertOncePerRank) {
  cut_by(R"({"slots": [0, 1, 1, 2, 3, 4, 5, 6, 7, 0, 0, 1]})", {.ep = 3}, /*redundant=*/true);
  EXPECT_THAT(held(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(held(1), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(held(2), ElementsAre(0, 1, 7));
  EXPECT_THAT(slots(0), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(slots(2), ElementsAre(7, 0, 0, 1));
}

TEST_F(ExpertPlacement, MayGiveRanksDifferentNumbersOfSlots) {
  cut_by(R"({"slots": [7, 6, 5, 4, 3, 2, 1, 0], "slots_per_rank": [1, 5, 2]})", {.ep = 3},
         /*redundant=*/false, /*uneven=*/true);
  EXPECT_THAT(held(0), ElementsAre(7));
  EXPECT_THAT(held(1), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_THAT(held(2), ElementsAre(0, 1));
}

TEST_F(ExpertPlacement, PlacesASharedExpertInSomeSlots) {
  cut_by("[0, 1, 2, 3, 8, 4, 5, 6, 7, 8]", {.ep = 2}, /*redundant=*/true);
  EXPECT_TRUE(has_shared(0));
  EXPECT_TRUE(has_shared(1));
  EXPECT_THAT(slots(1), ElementsAre(4, 5, 6, 7, 8));
}

TEST_F(ExpertPlacement, CutsPlacedSharedExpertsLikeRoutedOnes) {
  cut_by("[0, 1, 2, 3, 4, 5, 6, 7, 8]", {.tp = 2, .ep = 3, .etp = 2});
  EXPECT_FALSE(has_shared(0));
  EXPECT_FALSE(has_shared(3));
  EXPECT_TRUE(has_shared(4));
  EXPECT_TRUE(has_shared(5));
  const auto up = read_output(rank(5)).at("model.layers.1.mlp.shared_experts.up_proj.weight");
  EXPECT_EQ(up.shape, (formats::Shape{32, 128})) << "of 64 rows, by etp";
  EXPECT_EQ(up.file.substr(0, 12), "ep-02-of-03-");
}

TEST_F(ExpertPlacement, DiffersBetweenLayersWhereTheMapSaysSo) {
  cut_by(R"({"layers": {"1": [0, 2, 4, 6, 1, 3, 5, 7], "2": [7, 6, 5, 4, 3, 2, 1, 0]}})",
         {.ep = 2, .pp = 3});
  // Stage 1 has layer 1, stage 2 has layer 2.
  EXPECT_THAT(held(2, 1), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(held(3, 1), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(held(4, 2), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(slots(4), ElementsAre(7, 6, 5, 4));
  EXPECT_EQ(record_of_rank(rank(4)).experts.at(0).layer, 2U);
  EXPECT_TRUE(record_of_rank(rank(0)).experts.empty()) << "the dense layer has none";
}

TEST_F(ExpertPlacement, ReplicatedSharedExpertsAreWholeEverywhere) {
  cut_ = {.tp = 2, .ep = 2};
  Conversion conversion = slicing(model(), directory_ / "sliced", cut_);
  conversion.plan.slicing.shared = shard::SharedExperts::kReplicated;
  conversion.run();
  const std::string name = "model.layers.1.mlp.shared_experts.up_proj.weight";
  const OutputTensor original = read_output(model()).at(name);
  for (const std::uint32_t number : {0U, 1U}) {
    const OutputTensor tensor = read_output(rank(number)).at(name);
    EXPECT_TRUE(tensor == original);
    EXPECT_EQ(tensor.file, "all-00001-of-00001.safetensors");
  }
  expect_each_accepted_alone(conversion.output, cut_);
  keeping(conversion.output, directory_ / "merged").run();
  EXPECT_EQ(first_difference(tensor_bytes(directory_ / "merged"), tensor_bytes(model())), "");
}

TEST_F(ExpertPlacement, StacksKeepTheRanksExpertsAscending) {
  const auto stacked = write_stacked(model(), directory_ / "stacked");
  cut_ = {.ep = 2};
  Conversion conversion = slicing(stacked, directory_ / "sliced", cut_);
  conversion.plan.slicing.expert_map = "[6, 1, 3, 0, 2, 7, 5, 4, 1, 0]";
  conversion.plan.slicing.redundant_experts = true;
  conversion.run();
  const std::string name = "model.layers.2.mlp.experts.down_proj";
  const OutputTensor whole = read_output(stacked).at(name);
  const std::size_t one = whole.bytes.size() / 8;
  const std::vector<Numbers> experts = {{0, 1, 2, 3, 6}, {0, 1, 4, 5, 7}};
  for (std::uint32_t number = 0; number < 2; ++number) {
    std::string wanted;
    for (const std::uint32_t expert : experts[number])
      wanted += whole.bytes.substr(expert * one, one);
    const OutputTensor tensor = read_output(rank(number)).at(name);
    EXPECT_EQ(tensor.shape, (formats::Shape{5, 128, 64}));
    EXPECT_TRUE(tensor.bytes == wanted);
  }
  expect_each_accepted_alone(conversion.output, cut_);
  keeping(conversion.output, directory_ / "merged").run();
  EXPECT_EQ(first_difference(tensor_bytes(directory_ / "merged"), tensor_bytes(stacked)), "");
}

}  // namespace
}  // namespace ingot::testing
