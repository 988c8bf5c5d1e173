#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/check/editable_checkpoint.h"
#include "tests/slicing/rank_tree.h"

// Which tensors a pipeline stage has.

namespace ingot::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

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
    // The MTP layer and the head stand with the last layer, the embedding with the first.
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

}  // namespace
}  // namespace ingot::testing
