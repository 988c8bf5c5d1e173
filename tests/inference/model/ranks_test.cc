// Several ranks of one model in one process: the same logits as one rank within the rounding of
// sums in another order, and the same bits on every rank of a tensor group.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/inference/model/thread_comm.h"
#include "tests/support/expect_error.h"

namespace ingot::testing {
namespace {

using namespace inference;

using Tokens = std::vector<std::int64_t>;

constexpr const char* kTiny = "examples/tiny-v32";
constexpr const char* kQwen = "tests/golden/arch/qwen3_moe/checkpoint";

struct Case {
  const char* name;
  const char* checkpoint;
  WorldShape shape;
};

/// Steps of a data-parallel group; an entry is how many tokens of its sequence come next. Groups
/// have different work, and none in some steps.
using Schedule = std::vector<std::size_t>;
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

  std::vector<Tokens> prompts_;
};

TEST_P(Ranks, HaveTheLogitsOfOneRank) {
  const WorldShape& shape = GetParam().shape;
  const formats::Checkpoint source = shard::open_source(directory());
  std::vector<std::vector<float>> wanted;
  {
    const OpenedModel single(directory());
    for (std::size_t g = 0; g < shape.dp; ++g) wanted.push_back(run_schedule(single.model, g));
  }
  std::vector<std::vector<float>> is(shape.n_ranks());
  run_ranks(shape, [&](std::size_t rank, const RankView& view, inference::Comm& comm) {
    const Model model = Model::open(source, view, comm, f32_options(AttentionForm::kAuto, 1));
    is[rank] = run_schedule(model, shape.group(rank));
  });
  for (std::size_t rank = 0; rank < shape.n_ranks(); ++rank) {
    const std::size_t group = shape.group(rank);
    ASSERT_EQ(is[rank].size(), wanted[group].size());
    EXPECT_LE(relative_error(is[rank], wanted[group]), 1e-5) << "rank " << rank;
    EXPECT_TRUE(same_bits(is[rank], is[group * shape.tp])) << "rank " << rank;
    if (shape.tp == 1) {  // nothing is summed over ranks
      EXPECT_TRUE(same_bits(is[rank], wanted[group])) << "rank " << rank;
    }
  }
}

// Rounded profiles round other sums, but no worse than one rank does, and the ranks of a group
// round alike.
TEST_P(Ranks, AreAsCloseAsOneRank) {
  const WorldShape& shape = GetParam().shape;
  const formats::Checkpoint source = shard::open_source(directory());
  const OpenedModel exact(directory());
  for (const inference::Profile profile :
       {inference::Profile::kBf16, inference::Profile::kNative}) {
    const inference::ModelOptions options{.profile = profile};
    const OpenedModel single(directory(), options);
    std::vector<std::vector<float>> is(shape.n_ranks());
    run_ranks(shape, [&](std::size_t rank, const RankView& view, inference::Comm& comm) {
      is[rank] = run_schedule(Model::open(source, view, comm, options), shape.group(rank));
    });
    for (std::size_t group = 0; group < shape.dp; ++group) {
      const auto wanted = run_schedule(exact.model, group);
      const double usual = relative_error(run_schedule(single.model, group), wanted);
      EXPECT_LE(relative_error(is[group * shape.tp], wanted), 1.5 * usual)
          << inference::profile_name(profile) << " group " << group;
    }
    for (std::size_t rank = 0; rank < shape.n_ranks(); ++rank) {
      EXPECT_TRUE(same_bits(is[rank], is[shape.group(rank) * shape.tp])) << "rank " << rank;
    }
  }
}

TEST_P(Ranks, ReadTheirShareOfTheWeights) {
  const WorldShape& shape = GetParam().shape;
  const std::uint64_t all = OpenedModel(directory()).model.bytes_read();
  const formats::Checkpoint source = shard::open_source(directory());
  std::vector<std::uint64_t> read(shape.n_ranks());
  run_ranks(shape, [&](std::size_t rank, const RankView& view, inference::Comm& comm) {
    read[rank] = Model::open(source, view, comm, f32_options()).bytes_read();
  });
  for (const std::uint64_t bytes : read) EXPECT_LT(bytes, all);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Ranks,
    ::testing::Values(Case{"v32_tp2", kTiny, {.dp = 1, .tp = 2, .ep = 2}},
                      Case{"v32_tp4", kTiny, {.dp = 1, .tp = 4, .ep = 4}},
                      Case{"v32_ep2_dp2", kTiny, {.dp = 2, .tp = 1, .ep = 2}},
                      Case{"v32_tp2_ep4_dp2", kTiny, {.dp = 2, .tp = 2, .ep = 4}},
                      Case{"v32_tp2_ep2_dp2", kTiny, {.dp = 2, .tp = 2, .ep = 2}},
                      Case{"qwen3_tp2", kQwen, {.dp = 1, .tp = 2, .ep = 2}},
                      Case{"qwen3_tp4", kQwen, {.dp = 1, .tp = 4, .ep = 4}},
                      Case{"qwen3_ep2_dp2", kQwen, {.dp = 2, .tp = 1, .ep = 2}},
                      Case{"qwen3_tp2_ep4_dp2", kQwen, {.dp = 2, .tp = 2, .ep = 4}},
                      Case{"qwen3_tp4_ep8_dp2", kQwen, {.dp = 2, .tp = 4, .ep = 8}}),
    [](const auto& suite) { return std::string(suite.param.name); });

/// What is said when a model is opened for rank 0 of such a world.
void expect_refused(const char* checkpoint, const RankView& view,
                    std::initializer_list<std::string> fragments) {
  const formats::Checkpoint source =
      shard::open_source(std::filesystem::path(INGOT_SOURCE_DIR) / checkpoint);
  inference::OneRank comm;
  expect_error(ErrorCode::kUnsupported, fragments,
               [&] { Model::open(source, view, comm, f32_options()); });
}

TEST(RankShapes, ThatDoNotDivideTheModelAreRefused) {
  expect_refused(kTiny, {.tp_size = 3, .ep_size = 3}, {"do not divide among 3 ranks"});
  expect_refused(kTiny, {.ep_size = 3}, {"experts: 16 do not divide among 3 ranks"});
  expect_refused(kTiny, {.tp_size = 16, .ep_size = 16}, {"attention heads: 8", "16 ranks"});
  expect_refused(kQwen, {.ep_size = 3}, {"experts: 8 do not divide among 3 ranks"});
  expect_refused(kQwen, {.tp_size = 3, .ep_size = 6}, {"do not divide among"});
}

TEST(RankShapes, RefuseFewerExpertRanksThanTensorRanks) {
  expect_refused(kTiny, {.tp_size = 2, .ep_size = 1}, {"1 ranks", "2", "multiple"});
  expect_refused(kTiny, {.tp_size = 4, .ep_size = 2}, {"2 ranks", "4", "multiple"});
}

// One rank's failure must not leave the others waiting in these tests.
TEST(RankShapes, AFailingRankReleasesTheOthers) {
  EXPECT_THROW(run_ranks({.dp = 1, .tp = 2, .ep = 2},
                         [](std::size_t rank, const RankView&, inference::Comm& comm) {
                           if (rank == 1) throw std::runtime_error("down");
                           float value = 1;
                           comm.all_reduce(inference::Group::kTensor, {&value, 1});
                         }),
               std::runtime_error);
}

}  // namespace
}  // namespace ingot::testing
