#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/expect_error.h"

// Several ranks of one model in one process: the same logits as one rank within the rounding of
// sums in another order, and the same bits on every rank of a tensor group.

namespace ingot::testing {

using Schedule = std::vector<std::size_t>;
using Tokens = std::vector<std::int64_t>;
using namespace inference;

namespace {

constexpr const char* kTiny = "examples/tiny-v32";
constexpr const char* kQwen = "tests/golden/arch/qwen3_moe/checkpoint";

struct Case {
  const char* name;
  const char* checkpoint;
  shard::Topology topology;

  [[nodiscard]] RankView view(std::uint32_t rank) const {
    return {.topology = topology, .rank = rank, .stages = stages()};
  }
  /// Stages of one layer, but for the last.
  [[nodiscard]] shard::Stages stages() const {
    if (topology.pp == 1) return {};
    const formats::Checkpoint source =
        shard::open_source(std::filesystem::path(INGOT_SOURCE_DIR) / checkpoint);
    shard::Stages stages;
    for (std::uint32_t stage = 0; stage < topology.pp; ++stage) stages.first.push_back(stage);
    stages.first.push_back(static_cast<std::uint32_t>(source.config().num_hidden_layers));
    return stages;
  }
  /// Which of the data-parallel groups a rank is in, and how many there are.
  [[nodiscard]] std::size_t group(std::size_t rank) const {
    return rank % topology.ranks_per_stage() / topology.tp;
  }
  [[nodiscard]] std::size_t n_groups() const { return topology.ranks_per_stage() / topology.tp; }
};

/// Steps of a data-parallel group; an entry is how many tokens of its sequence come next. Groups
/// have different work, and none in some steps.
const std::vector<Schedule> kSchedules = {{65, 1, 0, 1, 2}, {0, 11, 1, 0, 1}};

class Ranks : public ::testing::TestWithParam<Case> {
 protected:
  Ranks() {
    const GoldenFile tiny(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors");
    prompts_ = {tiny.integers("prompt4.input_ids"), tiny.integers("prompt3.input_ids")};
    for (Tokens& prompt : prompts_) {
      for (auto& id : prompt) id %= 512;
    }
  }

  [[nodiscard]] static std::filesystem::path directory() {
    return std::filesystem::path(INGOT_SOURCE_DIR) / GetParam().checkpoint;
  }

  /// All logits of a group's schedule, then those of its MTP layer where there is one.
  [[nodiscard]] std::vector<float> run_schedule(const Model& model, std::size_t group) const {
    ModelCache cache = model.make_cache(KvFormat::kF32, 256);
    const inference::SequenceId sequence = cache.add();
    std::vector<float> logits;
    std::size_t done = 0;
    for (const std::size_t n : kSchedules.at(group)) {
      std::vector<Row> rows, next;
      for (std::size_t i = done; i < done + n; ++i) {
        const Row row{.sequence = sequence,
                      .position = static_cast<std::uint32_t>(i),
                      .token = static_cast<std::int32_t>(prompts_[group].at(i)),
                      .logits = true};
        rows.push_back(row);
        next.push_back(row);
        next.back().token = static_cast<std::int32_t>(prompts_[group].at(i + 1));
      }
      done += n;
      const auto add = [&](const Matrix& values) {
        logits.insert(logits.end(), values.values().begin(), values.values().end());
      };
      Matrix normed;
      add(model.step(rows, cache, {}, &normed));
      if (model.has_mtp()) add(model.head(model.mtp(normed, next, cache)));
    }
    return logits;
  }

  /// The same of one rank, run once per process.
  [[nodiscard]] const std::vector<float>& of_one_rank(Profile profile, std::size_t group) const {
    static std::map<std::tuple<std::string, Profile, std::size_t>, std::vector<float>> known;
    const auto [at, is_new] = known.try_emplace({GetParam().checkpoint, profile, group});
    if (is_new)
      at->second = run_schedule(OpenedModel(directory(), {.profile = profile}).model, group);
    return at->second;
  }

  std::vector<Tokens> prompts_;
};

TEST_P(Ranks, HaveTheLogitsOfOneRank) {
  const shard::Topology& topology = GetParam().topology;
  const formats::Checkpoint source = shard::open_source(directory());
  std::vector<std::vector<float>> is(topology.n_ranks());
  run_ranks(topology, [&](std::uint32_t rank, inference::Comm& comm) {
    const Model model(source, GetParam().view(rank), comm, f32_options(AttentionForm::kAuto, 1));
    is[rank] = run_schedule(model, GetParam().group(rank));
  });
  for (std::size_t rank = 0; rank < topology.n_ranks(); ++rank) {
    const std::size_t group = GetParam().group(rank);
    const std::vector<float>& wanted = of_one_rank(Profile::kF32, group);
    ASSERT_EQ(is[rank].size(), wanted.size());
    EXPECT_LE(relative_error(is[rank], wanted), 1e-5) << "rank " << rank;
    EXPECT_TRUE(same_bits(is[rank], is[group * topology.tp])) << "rank " << rank;
    if (topology.tp == 1 && topology.etp == 1) {  // no sum is over ranks
      EXPECT_TRUE(same_bits(is[rank], wanted)) << "rank " << rank;
    }
  }
}

class RoundedRanks : public Ranks {};

// Rounded profiles round other sums, but no worse than one rank does, and the ranks of a group
// round alike.
TEST_P(RoundedRanks, AreAsCloseAsOneRank) {
  const shard::Topology& topology = GetParam().topology;
  const formats::Checkpoint source = shard::open_source(directory());
  for (const inference::Profile profile :
       {inference::Profile::kBf16, inference::Profile::kNative}) {
    const inference::ModelOptions options{.profile = profile};
    std::vector<std::vector<float>> is(topology.n_ranks());
    run_ranks(topology, [&](std::uint32_t rank, inference::Comm& comm) {
      is[rank] =
          run_schedule(Model(source, GetParam().view(rank), comm, options), GetParam().group(rank));
    });
    for (std::size_t group = 0; group < GetParam().n_groups(); ++group) {
      const std::vector<float>& wanted = of_one_rank(Profile::kF32, group);
      const double usual = relative_error(of_one_rank(profile, group), wanted);
      EXPECT_LE(relative_error(is[group * topology.tp], wanted), 1.5 * usual)
          << inference::profile_name(profile) << " group " << group;
    }
    for (std::size_t rank = 0; rank < topology.n_ranks(); ++rank) {
      EXPECT_TRUE(same_bits(is[rank], is[GetParam().group(rank) * topology.tp])) << "rank " << rank;
    }
  }
}

TEST_P(Ranks, ReadTheirShareOfTheWeights) {
  const shard::Topology& topology = GetParam().topology;
  const std::uint64_t all = OpenedModel(directory()).model.bytes_read();
  const formats::Checkpoint source = shard::open_source(directory());
  std::vector<std::uint64_t> read(topology.n_ranks());
  run_ranks(topology, [&](std::uint32_t rank, inference::Comm& comm) {
    read[rank] = Model(source, GetParam().view(rank), comm, f32_options()).bytes_read();
  });
  for (const std::uint64_t bytes : read) EXPECT_LT(bytes, all);
}

std::string cut_name(const ::testing::TestParamInfo<Case>& suite) {
  return std::string(suite.param.name);
}

// Three that use every axis.
const Case kAxes[] = {{"v32_tp2_ep2_etp2_dp2", kTiny, {.tp = 2, .ep = 2, .etp = 2}},
                      {"v32_ep2_pp2_dp2", kTiny, {.ep = 2, .pp = 2}},
                      {"qwen3_tp4", kQwen, {.tp = 4, .ep = 4}}};
const Case kOtherShapes[] = {{"v32_tp4", kTiny, {.tp = 4, .ep = 4}},
                             {"v32_etp2", kTiny, {.tp = 2, .etp = 2}},
                             {"v32_tp4_ep2", kTiny, {.tp = 4, .ep = 2}},
                             {"v32_pp3", kTiny, {.pp = 3}},
                             {"qwen3_tp2_ep4_dp2", kQwen, {.tp = 2, .ep = 4}}};

INSTANTIATE_TEST_SUITE_P(Axes, Ranks, ::testing::ValuesIn(kAxes), cut_name);
INSTANTIATE_TEST_SUITE_P(Shapes, Ranks, ::testing::ValuesIn(kOtherShapes), cut_name);
INSTANTIATE_TEST_SUITE_P(Axes, RoundedRanks, ::testing::ValuesIn(kAxes), cut_name);
INSTANTIATE_TEST_SUITE_P(SlowShapes, RoundedRanks, ::testing::ValuesIn(kOtherShapes), cut_name);

const Case kSlowShapes[] = {{"v32_tp2", kTiny, {.tp = 2, .ep = 2}},
                            {"v32_ep2_dp2", kTiny, {.ep = 2}},
                            {"v32_tp2_ep4_dp2", kTiny, {.tp = 2, .ep = 4}},
                            {"v32_tp2_pp2", kTiny, {.tp = 2, .ep = 2, .pp = 2}},
                            {"qwen3_tp2", kQwen, {.tp = 2, .ep = 2}},
                            {"qwen3_ep2_dp2", kQwen, {.ep = 2}},
                            {"qwen3_tp4_ep8_dp2", kQwen, {.tp = 4, .ep = 8}}};

INSTANTIATE_TEST_SUITE_P(SlowCuts, Ranks, ::testing::ValuesIn(kSlowShapes), cut_name);
INSTANTIATE_TEST_SUITE_P(SlowCuts, RoundedRanks, ::testing::ValuesIn(kSlowShapes), cut_name);

/// Expects the error when a model is opened for rank 0 of such a world.
void expect_refused(const char* checkpoint, const shard::Topology& topology, ErrorCode code,
                    std::initializer_list<std::string> fragments) {
  const formats::Checkpoint source =
      shard::open_source(std::filesystem::path(INGOT_SOURCE_DIR) / checkpoint);
  inference::OneRank comm;
  expect_error(code, fragments,
               [&] { Model(source, {.topology = topology, .rank = 0}, comm, f32_options()); });
}

TEST(RankShapes, ThatDoNotDivideTheModelAreRefused) {
  using enum ErrorCode;
  expect_refused(kTiny, {.tp = 3}, kUnsupported, {"do not divide among 3 ranks"});
  expect_refused(kTiny, {.etp = 3}, kUnsupported, {"inner features", "128", "3 ranks"});
  expect_refused(kTiny, {.ep = 3}, kInvalidArgument, {"16 experts", "--ep 3 ranks"});
  expect_refused(kTiny, {.tp = 16, .ep = 16}, kUnsupported, {"attention heads: 8", "16 ranks"});
  expect_refused(kTiny, {.pp = 2}, kUnsupported, {"5 layers in 2 stages"});
  expect_refused(kQwen, {.tp = 3, .ep = 8}, kUnsupported, {"do not divide among 3 ranks"});
}

}  // namespace

}  // namespace ingot::testing
