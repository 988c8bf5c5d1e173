#include "shard/cut/topology.h"

#include "shard/cut/stages.h"
#include "tests/shard/model_tensors.h"
#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using namespace ingot::testing;
using formats::LogicalTensor;
using formats::Role;
using ingot::testing::expect_error;
using ::testing::ElementsAre;

TEST(Topology, WithoutExpertParallelismTpCutsTheExperts) {
  const Topology topology = make_topology(8, 1, std::nullopt, 1);
  EXPECT_EQ(topology.etp, 8U);
  EXPECT_EQ(topology.n_ranks(), 8U);
}

TEST(Topology, ExpertParallelismLeavesExpertsWhole) {
  const Topology topology = make_topology(8, 16, std::nullopt, 1);
  EXPECT_EQ(topology.etp, 1U);
  EXPECT_EQ(topology.n_ranks(), 16U);
  // Two data-parallel groups of TP 8, one expert group of 16.
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    const RankPosition at = topology.position(rank);
    EXPECT_EQ(at.tp_rank, rank % 8);
    EXPECT_EQ(at.ep_rank, rank);
    EXPECT_EQ(at.etp_rank, 0U);
  }
}

TEST(Topology, FewerTpRanksThanExpertRanksRepeat) {
  const Topology topology = make_topology(2, 4, std::nullopt, 1);
  EXPECT_EQ(topology.n_ranks(), 4U);
  const std::array<std::array<std::uint32_t, 2>, 4> tp_ep = {{{0, 0}, {1, 1}, {0, 2}, {1, 3}}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(topology.position(rank).tp_rank, tp_ep[rank][0]);
    EXPECT_EQ(topology.position(rank).ep_rank, tp_ep[rank][1]);
  }
}

TEST(Topology, StageHasLeastCommonMultipleOfRanks) {
  EXPECT_EQ(make_topology(4, 3, 2, 1).n_ranks(), 12U);  // lcm(4, 6)
  EXPECT_EQ(make_topology(6, 2, 2, 1).n_ranks(), 12U);  // lcm(6, 4)
  EXPECT_EQ(make_topology(8, 2, 4, 1).n_ranks(), 8U);   // lcm(8, 8)
  EXPECT_EQ(make_topology(8, 1, 2, 1).n_ranks(), 8U);   // lcm(8, 2)
  EXPECT_EQ(make_topology(1, 4, 2, 3).n_ranks(), 24U);  // 3 x lcm(1, 8)
  EXPECT_EQ(make_topology(1, 1, std::nullopt, 1).n_ranks(), 1U);
  EXPECT_TRUE(make_topology(1, 1, std::nullopt, 1).is_single());
  EXPECT_FALSE(make_topology(1, 1, std::nullopt, 2).is_single());
}

TEST(Topology, PositionsFollowTheNumberingRule) {
  const Topology topology = make_topology(4, 3, 2, 2);
  // stage, tp, ep, etp
  const std::array<std::array<std::uint32_t, 4>, 24> table = {{
      {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 1, 0}, {0, 3, 1, 1}, {0, 0, 2, 0}, {0, 1, 2, 1},
      {0, 2, 0, 0}, {0, 3, 0, 1}, {0, 0, 1, 0}, {0, 1, 1, 1}, {0, 2, 2, 0}, {0, 3, 2, 1},
      {1, 0, 0, 0}, {1, 1, 0, 1}, {1, 2, 1, 0}, {1, 3, 1, 1}, {1, 0, 2, 0}, {1, 1, 2, 1},
      {1, 2, 0, 0}, {1, 3, 0, 1}, {1, 0, 1, 0}, {1, 1, 1, 1}, {1, 2, 2, 0}, {1, 3, 2, 1},
  }};
  ASSERT_EQ(topology.n_ranks(), table.size());
  for (std::uint32_t rank = 0; rank < table.size(); ++rank) {
    const RankPosition at = topology.position(rank);
    EXPECT_EQ(at.rank, rank);
    EXPECT_EQ(at.stage, table[rank][0]) << rank;
    EXPECT_EQ(at.tp_rank, table[rank][1]) << rank;
    EXPECT_EQ(at.ep_rank, table[rank][2]) << rank;
    EXPECT_EQ(at.etp_rank, table[rank][3]) << rank;
  }
}

TEST(Topology, EverySliceIsHeldEquallyOften) {
  for (const std::uint32_t tp : {1U, 2U, 3U, 4U, 8U}) {
    for (const std::uint32_t ep : {1U, 2U, 3U, 5U, 16U}) {
      for (const std::uint32_t etp : {1U, 2U, 3U, 4U}) {
        const Topology topology = make_topology(tp, ep, etp, 1);
        std::map<std::uint32_t, std::uint32_t> by_tp;
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> by_expert_slice;
        for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
          const RankPosition at = topology.position(rank);
          ++by_tp[at.tp_rank];
          ++by_expert_slice[{at.ep_rank, at.etp_rank}];
        }
        EXPECT_EQ(by_tp.size(), tp);
        EXPECT_EQ(by_expert_slice.size(), ep * etp);
        for (const auto& [at, n] : by_tp) EXPECT_EQ(n, topology.n_ranks() / tp);
        for (const auto& [at, n] : by_expert_slice) EXPECT_EQ(n, topology.n_ranks() / (ep * etp));
      }
    }
  }
}

TEST(Topology, RefusesZeros) {
  expect_error(ErrorCode::kInvalidArgument, {"--tp is 0"}, [] { make_topology(0, 1, 1, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--ep is 0"}, [] { make_topology(1, 0, 1, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--etp is 0"}, [] { make_topology(1, 1, 0, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--pp is 0"}, [] { make_topology(1, 1, 1, 0); });
}

TEST(Topology, RefusesMoreRanksThanItCanHold) {
  EXPECT_EQ(make_topology(1, 320, std::nullopt, 1).n_ranks(), 320U);
  EXPECT_EQ(make_topology(kMaxRanks, 1, std::nullopt, 1).n_ranks(), kMaxRanks);
  expect_error(ErrorCode::kInvalidArgument, {"--ep is 4097", "4096"},
               [] { make_topology(1, 4097, std::nullopt, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"needs 8192 ranks"},
               [] { make_topology(4096, 1, std::nullopt, 2); });
  expect_error(ErrorCode::kInvalidArgument, {"needs 16769025 ranks"},
               [] { make_topology(4095, 4095, 4095, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--tp is 4294967295"},
               [] { make_topology(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF); });
}

TEST(Topology, DirectoriesAreNumberedByRank) {
  EXPECT_EQ(rank_directory_name(3, 16), "rank-00003-of-00016");
  EXPECT_EQ(rank_directory_name(319, 320), "rank-00319-of-00320");
}

/// A qwen3_moe of so many layers.
ModelTensors decoder(std::uint32_t n_layers) {
  return {"qwen3_moe", {{"num_hidden_layers", n_layers}, {"num_experts", 2}}};
}

/// Bytes such that layer i has layers[i] in all; embedding, norm and head as given.
std::vector<std::uint64_t> bytes(const formats::TensorSource& source,
                                 const std::vector<std::uint64_t>& layers,
                                 std::uint64_t embedding = 0, std::uint64_t head = 0) {
  std::vector<std::uint64_t> n_bytes;
  for (const LogicalTensor& tensor : source.tensors()) {
    std::uint64_t n = 0;
    if (tensor.rule->role == Role::kInputNorm) n = layers.at(*tensor.layer);
    if (tensor.rule->role == Role::kEmbedding) n = embedding;
    if (tensor.rule->role == Role::kHead) n = head;
    n_bytes.push_back(n);
  }
  return n_bytes;
}

TEST(Stages, OneStageHasEveryLayer) {
  const ModelTensors model = decoder(5);
  const Stages stages = balanced_stages(model, bytes(model, {1, 1, 1, 1, 1}), 1);
  EXPECT_THAT(stages.first, ElementsAre(0, 5));
  EXPECT_EQ(stages.count(), 1U);
  EXPECT_EQ(stages.stage_of(4), 0U);
  EXPECT_EQ(Stages().count(), 1U);
  EXPECT_EQ(Stages().stage_of(4), 0U);
}

TEST(Stages, LayersBelongToTheRangeTheyStandIn) {
  const Stages stages = {.first = {0, 3, 4, 8}};
  EXPECT_EQ(stages.count(), 3U);
  const std::vector<std::uint32_t> expected = {0, 0, 0, 1, 2, 2, 2, 2};
  for (std::uint32_t layer = 0; layer < expected.size(); ++layer)
    EXPECT_EQ(stages.stage_of(layer), expected[layer]) << layer;
  EXPECT_EQ(stages.stage_of(8), 2U) << "MTP layers are on the last stage";
  EXPECT_EQ(stages.stage_of(9), 2U);
}

TEST(Stages, TiesGiveEarlierStagesMoreLayers) {
  const ModelTensors model = decoder(8);
  const std::vector<std::uint64_t> equal(8, 10);
  EXPECT_THAT(balanced_stages(model, bytes(model, equal), 3).first, ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(balanced_stages(model, bytes(model, equal), 8).first,
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(Stages, EmbeddingAndHeadCountForTheirStages) {
  const ModelTensors model = decoder(6);
  const std::vector<std::uint64_t> equal(6, 10);
  // 20 + 10 10 | 10 10 10 10 against 10 10 10 10 | 10 10 + 20
  EXPECT_THAT(balanced_stages(model, bytes(model, equal, 20, 0), 2).first, ElementsAre(0, 2, 6));
  EXPECT_THAT(balanced_stages(model, bytes(model, equal, 0, 20), 2).first, ElementsAre(0, 4, 6));
}

TEST(Stages, MtpLayersWeighOnTheLast) {
  const ModelTensors model("deepseek_v3", {{"num_hidden_layers", 6}, {"n_routed_experts", 2}});
  ASSERT_EQ(model.config().num_nextn_predict_layers, 1U);
  std::vector<std::uint64_t> n_bytes;
  for (const LogicalTensor& tensor : model.tensors()) {
    const bool counts = tensor.rule->role == Role::kInputNorm;
    n_bytes.push_back(counts ? (*tensor.layer == 6 ? 20 : 10) : 0);
  }
  EXPECT_THAT(balanced_stages(model, n_bytes, 2).first, ElementsAre(0, 4, 6));
}

/// The largest stage of a partition, layer by layer.
std::uint64_t largest(const std::vector<std::uint64_t>& layers,
                      const std::vector<std::uint32_t>& first) {
  std::uint64_t most = 0;
  for (std::size_t stage = 0; stage + 1 < first.size(); ++stage) {
    most = std::max(most, std::accumulate(layers.begin() + first[stage],
                                          layers.begin() + first[stage + 1], std::uint64_t{0}));
  }
  return most;
}

/// Tries every partition.
std::uint64_t least_largest(const std::vector<std::uint64_t>& layers, std::uint32_t pp,
                            std::vector<std::uint32_t> first = {0}) {
  const auto n = static_cast<std::uint32_t>(layers.size());
  if (first.size() == pp) {
    first.push_back(n);
    return largest(layers, first);
  }
  std::uint64_t least = ~std::uint64_t{0};
  for (std::uint32_t next = first.back() + 1; next < n; ++next) {
    std::vector<std::uint32_t> more = first;
    more.push_back(next);
    least = std::min(least, least_largest(layers, pp, more));
  }
  return least;
}

TEST(Stages, NoPartitionHasASmallerLargestStage) {
  const std::uint32_t n_layers = 9;
  const ModelTensors model = decoder(n_layers);
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::uint64_t> layers;
    for (std::uint32_t i = 0; i < n_layers; ++i) layers.push_back(random() % 100);
    for (std::uint32_t pp = 2; pp <= 5; ++pp) {
      const Stages stages = balanced_stages(model, bytes(model, layers), pp);
      ASSERT_EQ(stages.count(), pp);
      EXPECT_EQ(stages.first.front(), 0U);
      EXPECT_EQ(stages.first.back(), n_layers);
      for (std::uint32_t s = 0; s < pp; ++s) EXPECT_LT(stages.first[s], stages.first[s + 1]);
      EXPECT_EQ(largest(layers, stages.first), least_largest(layers, pp));
    }
  }
}

TEST(Stages, NeedALayerEach) {
  const ModelTensors model = decoder(3);
  expect_error(ErrorCode::kInvalidArgument, {"--pp 4", "3"}, [&] {
    balanced_stages(model, bytes(model, {1, 1, 1}), 4);
  });
}

TEST(Stages, AreReadFromRanges) {
  EXPECT_THAT(parse_stages("0-30,31-60", 61, 2).first, ElementsAre(0, 31, 61));
  EXPECT_THAT(parse_stages("0-0,1-1,2-4", 5, 3).first, ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(parse_stages("0-4", 5, 1).first, ElementsAre(0, 5));
}

TEST(Stages, RangesMustCoverEveryLayerOnce) {
  const auto refused = [](std::string_view text, std::uint32_t pp, const std::string& fragment) {
    expect_error(ErrorCode::kInvalidArgument, {fragment, std::string(text)},
                 [&] { parse_stages(text, 61, pp); });
  };
  refused("0-30,32-60", 2, "from layer 32, it must begin with layer 31");
  refused("0-30,30-60", 2, "from layer 30, it must begin with layer 31");
  refused("1-60", 1, "must begin with layer 0");
  refused("0-30,31-59", 2, "ends with layer 59, the last main layer is 60");
  refused("0-30,31-61", 2, "names layer 61");
  refused("0-30,31-60", 3, "2 stages, --pp is 3");
  refused("0-30,31-30", 2, "ends before it begins");
  for (const char* text : {"", "0", "0-", "-5", "0-30,", ",0-60", "0-30;31-60", "a-b", "0 - 60",
                           "0-99999999999", "+0-60"}) {
    refused(text, 1, "no range");
  }
}

}  // namespace
}  // namespace ingot::shard
