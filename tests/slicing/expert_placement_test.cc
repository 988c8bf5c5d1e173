#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/slicing/rank_tree.h"
#include "tests/slicing/stacked_model.h"

// Which experts a rank has, and what its manifest says of its slots. The model has 8 experts in
// layers 1 and 2, and one shared expert.

namespace ingot::testing {
namespace {

using ::testing::ElementsAre;
using Numbers = std::vector<std::uint32_t>;

const std::filesystem::path& model() {
  static const std::filesystem::path path = arch_fixture("glm_moe_dsa");
  return path;
}

class ExpertPlacement : public ::testing::Test {
 protected:
  // Cuts the model by a map, checks every rank alone, and merges it back.
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
