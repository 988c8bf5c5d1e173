#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/inference/model/runner.h"

// The bytes that a step sends, collective by collective, agree with arithmetic: two groups of two
// ranks with rows of their own, experts over all four.

namespace ingot::testing {
namespace {

using namespace inference;

constexpr std::uint32_t kRanks = 4, kTensorRanks = 2;
constexpr std::size_t kExpertsPerRank = 2;
constexpr std::uint64_t kHidden = 128, kVocab = 512, kLayers = 3, kDenseLayers = 1;
constexpr std::size_t kRows[] = {7, 2};  // of each group

/// Messages and bytes.
using Sent = std::pair<std::uint64_t, std::uint64_t>;

std::size_t group_of(std::uint32_t rank) {
  return rank / kTensorRanks;
}

/// Rows that a rank sends to experts: the first of an odd number is the first rank's.
std::size_t own_rows(std::uint32_t rank) {
  const std::size_t rows = kRows[group_of(rank)];
  return rank % kTensorRanks == 0 ? rows - rows / 2 : rows / 2;
}

class StepTraffic : public ::testing::Test {
 protected:
  StepTraffic() {
    const formats::Checkpoint source = shard::open_source(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/arch/deepseek_v3/checkpoint");
    const shard::Topology topology = {.tp = kTensorRanks, .ep = kRanks};
    run_ranks(topology, [&](std::uint32_t rank, Comm& comm) {
      const Model model(source, {.topology = topology, .rank = rank}, comm, f32_options());
      const TrafficByCollective opening = comm.traffic();
      const std::size_t n_rows = kRows[group_of(rank)];
      ModelCache cache = model.make_cache(KvFormat::kF32, n_rows);
      std::vector<Row> rows;
      for (std::size_t i = 0; i < n_rows; ++i) {
        rows.push_back({.sequence = 0,
                        .position = static_cast<std::uint32_t>(i),
                        .token = static_cast<std::int32_t>(40 * rank / kTensorRanks + i),
                        .logits = i > 0});
      }
      cache.add();
      Taps taps;
      taps.router = [&](std::size_t layer, std::span<const std::uint32_t> experts,
                        std::span<const float>) {
        chosen_[rank][layer].assign(experts.begin(), experts.end());
      };
      model.step(rows, cache, taps);
      sent_[rank] = comm.traffic();
      for (const auto& [what, traffic] : opening) sent_[rank].erase(what);
    });
  }

  Sent sent(std::uint32_t rank, Group group, std::string_view name,
            std::size_t layer = Collective::kNoLayer) {
    const Collective what = {.group = group, .name = name, .layer = layer};
    const auto found = sent_[rank].find(what);
    if (found == sent_[rank].end()) {
      ADD_FAILURE() << "rank " << rank << " has not come for " << name << " of layer " << layer;
      return {};
    }
    const Sent sent = {found->second.n_messages, found->second.n_bytes};
    sent_[rank].erase(found);
    return sent;
  }

  /// Uses of experts of rank `to` by the rows of rank `from`, and the rows that use any.
  std::pair<std::uint64_t, std::uint64_t> uses(std::uint32_t from, std::uint32_t to,
                                               std::size_t layer) {
    const std::vector<std::uint32_t>& experts = chosen_[from][layer];
    const std::size_t n_rows = kRows[group_of(from)], topk = experts.size() / n_rows;
    const std::size_t first = from % kTensorRanks == 0 ? 0 : own_rows(from - 1);
    std::uint64_t n_uses = 0, n_tokens = 0;
    for (std::size_t row = first; row < first + own_rows(from); ++row) {
      std::uint64_t of_row = 0;
      for (std::size_t i = 0; i < topk; ++i)
        of_row += experts[row * topk + i] / kExpertsPerRank == to ? 1U : 0U;
      n_uses += of_row;
      n_tokens += of_row > 0 ? 1U : 0U;
    }
    return {n_uses, n_tokens};
  }

  std::vector<TrafficByCollective> sent_ = std::vector<TrafficByCollective>(kRanks);
  std::vector<std::map<std::size_t, std::vector<std::uint32_t>>> chosen_ =
      std::vector<std::map<std::size_t, std::vector<std::uint32_t>>>(kRanks);
};

TEST_F(StepTraffic, IsWhatArithmeticPredicts) {
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const std::uint64_t rows = kRows[group_of(rank)];
    const Sent states = {kTensorRanks - 1, rows * kHidden * 4};
    EXPECT_EQ(sent(rank, Group::kTensor, "embedding sum"), states);
    EXPECT_EQ(sent(rank, Group::kTensor, "logits"),
              Sent(kTensorRanks - 1, (rows - 1) * (kVocab / kTensorRanks) * 4));
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(sent(rank, Group::kTensor, "attention sum", layer), states);
      if (layer < kDenseLayers) {
        EXPECT_EQ(sent(rank, Group::kTensor, "MLP sum", layer), states);
        continue;
      }
      EXPECT_EQ(sent(rank, Group::kTensor, "shared expert sum", layer), states);
      EXPECT_EQ(sent(rank, Group::kTensor, "expert sums", layer),
                Sent(kTensorRanks - 1, own_rows(rank) * kHidden * 4));
      Sent tokens, outputs;
      for (std::uint32_t other = 0; other < kRanks; ++other) {
        if (other == rank) continue;
        const auto [n_uses, n_tokens] = uses(rank, other, layer);
        tokens.first += n_uses > 0 ? 1U : 0U;
        tokens.second += n_uses > 0 ? 4 + 8 * n_uses + n_tokens * kHidden * 4 : 0;
        const auto [n_answered, n_rows] = uses(other, rank, layer);
        outputs.first += n_answered > 0 ? 1U : 0U;
        outputs.second += n_answered * kHidden * 4;
      }
      EXPECT_EQ(sent(rank, Group::kExpert, "expert tokens", layer), tokens);
      EXPECT_EQ(sent(rank, Group::kExpert, "expert outputs", layer), outputs);
    }
    EXPECT_TRUE(sent_[rank].empty()) << sent_[rank].begin()->first.name;
  }
}

}  // namespace
}  // namespace ingot::testing
