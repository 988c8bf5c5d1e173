#include "convert/recipe/expert_selection.h"

#include <cmath>

#include "formats/base/fd.h"
#include "formats/experts/renumbered_names.h"
#include "formats/experts/router_tables.h"
#include "formats/json/json.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// The choice of experts that stay, and what follows from it in tables and names.

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::Json;
using formats::KeptExperts;
using namespace ingot::testing;

// Experts 0 to 7 in two groups, of which one gives three to a token; layers 1 and 2 have them.
constexpr const char* kGrouped = INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint";
constexpr const char* kDense = INGOT_SOURCE_DIR "/tests/golden/families/llama_fp8_static";

class ExpertChoiceTest : public ::testing::Test {
 protected:
  KeptExperts by_saliency(const std::map<std::string, std::vector<float>>& layers, double keep) {
    std::vector<TinyTensor> tensors;
    for (const auto& [layer, scores] : layers)
      tensors.push_back({layer + ".expert_saliency", "F32", {scores.size()}, bytes_of(scores)});
    write_bytes(directory_ / "s.safetensors", safetensors_bytes(tensors));
    return select_experts(source_, source_,
                          {.keep = keep, .statistics = directory_ / "s.safetensors"})
        .kept;
  }
  KeptExperts by_list(const std::string& json) {
    write_text_file(directory_ / "kept.json", json);
    return select_experts(source_, source_, {.keep_map = directory_ / "kept.json"}).kept;
  }

  TempDir directory_;
  Checkpoint source_ = Checkpoint::open(kGrouped);
};

const std::vector<float> kScores = {5, 1, 1, 1, 9, 8, 7, 6};

TEST_F(ExpertChoiceTest, KeepsTheBestOfEachGroup) {
  const KeptExperts kept =
      by_saliency({{"model.layers.1", kScores}, {"model.layers.2", {0, 0, 0, 0, 0, 0, 0, 1}}}, 0.7);
  EXPECT_EQ(kept.n_experts, 8);
  EXPECT_EQ(kept.layers.at(1), (std::vector<std::uint32_t>{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(kept.layers.at(2), (std::vector<std::uint32_t>{0, 1, 2, 4, 5, 7}));
}

TEST_F(ExpertChoiceTest, NamesTheNearestNumberThatFits) {
  const std::map<std::string, std::vector<float>> layers = {{"model.layers.1", kScores},
                                                            {"model.layers.2", kScores}};
  expect_error(ErrorCode::kInvalidArgument, {"7 of 8", "nearest number that fits is 6", "0.75"},
               [&] { by_saliency(layers, 7.0 / 8); });
  expect_error(ErrorCode::kInvalidArgument, {"4 of 8", "nearest number that fits is 6"},
               [&] { by_saliency(layers, 0.5); });
  for (const double keep : {0.0, -1.0, 1.0, 8.0, 2.5, double{NAN}})
    expect_error(ErrorCode::kInvalidArgument, {"--keep"}, [&] { by_saliency(layers, keep); });
}

TEST_F(ExpertChoiceTest, RefusesScoresThatDoNotTell) {
  expect_error(ErrorCode::kMissingTensor, {"layer 2"}, [&] {
    by_saliency({{"model.layers.1", kScores}}, 0.75);
  });
  expect_error(ErrorCode::kMismatch, {"layer 2", "2 experts"}, [&] {
    by_saliency({{"model.layers.1", kScores}, {"model.layers.2", {1, 2}}}, 0.75);
  });
  expect_error(ErrorCode::kCorrupt, {"nan"}, [&] {
    by_saliency({{"model.layers.1", {NAN, 1, 1, 1, 1, 1, 1, 1}}, {"model.layers.2", kScores}},
                0.75);
  });
}

TEST_F(ExpertChoiceTest, TakesListsInAnyOrder) {
  const KeptExperts kept =
      by_list(R"({"model.layers.1.mlp": [7, 6, 4, 2, 1, 0], "2": [0, 1, 2, 4, 5, 6]})");
  EXPECT_EQ(kept.layers.at(1), (std::vector<std::uint32_t>{0, 1, 2, 4, 6, 7}));
  EXPECT_EQ(formats::parse_kept_experts(*kept.to_json(), "").layers, kept.layers);
}

TEST_F(ExpertChoiceTest, RefusesListsWithTheFault) {
  const auto refuse = [&](const std::string& json, std::initializer_list<std::string> facts) {
    expect_error(ErrorCode::kInvalidArgument, facts, [&] { by_list(json); });
  };
  refuse(R"({"1": [0, 0, 1, 2, 4, 5], "2": [0]})", {"kept.json", "'1'", "expert 0 a second time"});
  refuse(R"({"1": [0, 1, 2, 4, 5, 6], "2": [0, 1, 2, 4, 5, 8]})", {"layer 2 has no expert 8"});
  refuse(R"({"1": [0, 1, 2, 4, 5, 6]})", {"layer 2 has experts, and the list does not have it"});
  refuse(R"({"0": [0], "1": [0], "2": [0]})", {"layer 0 has no experts"});
  refuse(R"({"1": [0, 1, 2, 4, 5, 6], "2": [0, 1, 2, 4, 5]})", {"layer 1 keeps 6", "layer 2 5"});
  refuse(R"({"num_experts": 6, "layers": {"1": [0], "2": [0]}})", {"for 6 experts"});
  refuse(R"({"1": [0, 1.5], "2": "all"})", {"1.5", "'2' is no list"});
  refuse(R"({"1": [], "2": []})", {"'1' is no list"});
  refuse(R"([[0, 1]])", {"no object of layers"});
  refuse(R"({"1": [0, 1, 2, 3, 4, 5, 6, 7], "2": [0, 1, 2, 3, 4, 5, 6, 7]})",
         {"all 8 experts stay"});
}

TEST(ExpertSelection, IsRefusedWithoutExperts) {
  const Checkpoint dense = Checkpoint::open(kDense);
  expect_error(ErrorCode::kUnsupported, {"no routed experts"},
               [&] { select_experts(dense, dense, {.keep = 0.5, .statistics = "none"}); });
}

// Router rows (1, 0), (0.9, 0.1), (0, 1), (0.1, 0.9): 1 is like 0, and 3 like 2.
const std::vector<float> kRouter = {1, 0, 0.9F, 0.1F, 0, 1, 0.1F, 0.9F};
const std::vector<std::uint32_t> kStaying = {0, 2};

TEST(RouterTables, GiveDroppedExpertsTheMostSimilar) {
  const std::vector<std::int64_t> table = {0, 1, 1, 3, 3, 2, 2, 0};
  EXPECT_EQ(formats::redirected_rows(table, 2, {.rows = kRouter, .n_experts = 4, .kept = kStaying}),
            (std::vector<std::int64_t>{0, 1, 0, 1, 0, 1, 1, 0}));
}

TEST(RouterTables, AreRefusedWithOtherNumbers) {
  for (const std::int64_t number : {-1, 4}) {
    const std::vector<std::int64_t> table = {0, number};
    expect_error(ErrorCode::kCorrupt, {"token 0", "of 4"}, [&] {
      formats::redirected_rows(table, 2, {.rows = kRouter, .n_experts = 4, .kept = kStaying});
    });
  }
}

TEST(ExpertNumbers, AreFoundInNamesAndPatterns) {
  const Checkpoint source = Checkpoint::open(kGrouped);
  const std::map<std::uint32_t, std::vector<std::uint32_t>> kept = {{1, {0, 3, 7}}, {2, {1, 3, 5}}};
  const formats::ExpertNumbers numbers(source, kept);
  EXPECT_EQ(numbers.renumbered("model.layers.1.mlp.experts.7.up_proj"),
            "model.layers.1.mlp.experts.2.up_proj");
  EXPECT_EQ(numbers.renumbered("re:.*layers\\.2\\.mlp\\.experts\\.5\\..*"),
            "re:.*layers\\.2\\.mlp\\.experts\\.2\\..*");
  EXPECT_EQ(numbers.renumbered("*.experts.3.*"), "*.experts.1.*");
  EXPECT_EQ(numbers.original("model.layers.1.mlp.experts.2.up_proj"),
            "model.layers.1.mlp.experts.7.up_proj");
  for (const char* name : {"model.layers.1.mlp.experts.3.up_proj", "model.layers.0.mlp.experts.2",
                           "model.layers.1.self_attn.q_a_proj"})
    EXPECT_EQ(numbers.original(name), name);
  for (const char* name : {"model.layers.0.mlp.experts.7.up_proj", "lm_head", "*.experts.*",
                           "model.layers.1.mlp.shared_experts.7.up_proj"})
    EXPECT_EQ(numbers.renumbered(name), name);
  EXPECT_EQ(numbers.renumbered("model.layers.1.mlp.experts.1.up_proj"), std::nullopt);
  expect_error(ErrorCode::kUnsupported, {"*.experts.5.*", "several layers"},
               [&] { (void)numbers.renumbered("*.experts.5.*"); });
  Json description = {
      {"ignore", {"model.layers.1.mlp.experts.1.up_proj", "lm_head"}},
      {"quantized_layers", {{"model.layers.2.mlp.experts.3.up_proj", {{"bits", 4}}}}}};
  numbers.renumber(description);
  EXPECT_EQ(description.dump(), R"({"ignore":["lm_head"],"quantized_layers":{"model.layers.2.mlp.)"
                                R"(experts.1.up_proj":{"bits":4}}})");
}

}  // namespace
}  // namespace ingot::convert
