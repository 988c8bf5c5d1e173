#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <stop_token>

#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

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

// Data-parallel groups with prompts of their own, of any number and length, also none, whenever
// they arrive, take their steps together: no rank hangs, and all get the answers of one rank that
// has room for everything.

using Prompts = std::vector<std::vector<std::int32_t>>;

/// Ends the program when a test has not ended after some minutes: a rank waits for ever.
class Watchdog {
 public:
  Watchdog()
      : thread_([this](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          changed_.wait_for(lock, stop, std::chrono::minutes(5), [] { return false; });
          if (stop.stop_requested()) return;
          std::fputs("ranks wait for each other\n", stderr);
          std::abort();
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;
};

/// The requests to the ranks.
struct Schedule {
  Schedule() = default;
  Prompts prompts;
  std::size_t max_new_tokens = 0, batch_tokens = 512, cache_tokens = 0, drafts = 0;
  std::vector<double> arrivals;
  bool is_greedy = false;
  /// A rank that asks for the end before its n-th step.
  std::optional<std::uint32_t> stopping_rank;
  std::size_t stops_at = 0;

  Schedule(std::mt19937& random, std::uint32_t n_ranks, std::uint32_t most_drafts) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    prompts.resize(below(6));
    for (auto& prompt : prompts) {
      prompt.resize(below(3) == 0 ? 58 + below(6) : 1 + below(below(2) == 0 ? 3 : 24));
      for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(below(512));
    }
    max_new_tokens = below(10);
    batch_tokens = below(2) == 0 ? 512 : 1 + below(12);
    cache_tokens = below(2) == 0 ? 0 : 2 * KvCache::kPageTokens;
    drafts = below(most_drafts + 1);
    for (std::size_t i = 0; i < prompts.size() && max_new_tokens % 2 == 1; ++i)
      arrivals.push_back(0.002 * static_cast<double>(i));
    is_greedy = below(2) == 0;
    if (below(4) != 0) return;
    stopping_rank = below(n_ranks);
    stops_at = below(6);
  }

  [[nodiscard]] GenerateOptions options(std::optional<std::uint32_t> rank) const {
    GenerateOptions options;
    options.sampling = {.temperature = is_greedy ? 0.0F : 1.0F, .top_k = 20, .seed = 5};
    options.max_new_tokens = max_new_tokens;
    options.eos = {1};
    options.kv_format = KvFormat::kF32;
    if (!rank) return options;
    options.batch_tokens = batch_tokens;
    options.cache_tokens = cache_tokens;
    options.drafts = drafts;
    options.arrivals = arrivals;
    if (rank == stopping_rank)
      options.stop_requested = [left = stops_at]() mutable { return left-- == 0; };
    return options;
  }
};

void expect_begins(const Answer& is, const Answer& whole) {
  ASSERT_LE(is.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(is.tokens.begin(), is.tokens.end(), whole.tokens.begin()));
}

const std::filesystem::path kRoot = INGOT_SOURCE_DIR;
const std::filesystem::path kSmallest = kRoot / "tests/golden/arch/deepseek_v3/checkpoint";
const std::filesystem::path kExample = kRoot / "examples/tiny-v32";

class Schedules : public ::testing::TestWithParam<shard::Topology> {
 protected:
  static std::vector<Schedule> random_schedules(std::size_t n, std::uint32_t most_drafts) {
    const std::uint32_t n_ranks = GetParam().n_ranks();
    std::mt19937 random(n_ranks);
    std::vector<Schedule> schedules;
    for (std::size_t i = 0; i < n; ++i) schedules.emplace_back(random, n_ranks, most_drafts);
    return schedules;
  }

  /// Returns how many sequences were preempted.
  static std::size_t expect_answers_of_one_rank(const std::filesystem::path& directory,
                                                std::span<const Schedule> schedules) {
    const Watchdog watchdog;
    const shard::Topology topology = GetParam();
    const formats::Checkpoint source = shard::open_source(directory);
    std::vector<std::vector<GenerateResult>> results(topology.n_ranks());
    run_ranks(topology, [&](std::uint32_t rank, Comm& comm) {
      RankView view = {.topology = topology, .rank = rank};
      if (topology.pp == 2)
        view.stages.first = {0, 1, static_cast<std::uint32_t>(model_spec(source).n_main)};
      const Model model(source, view, comm, f32_options());
      for (const Schedule& schedule : schedules)
        results[rank].push_back(generate(model, schedule.prompts, schedule.options(rank)));
    });

    const OpenedModel whole(directory);
    std::size_t n_preempted = 0;
    for (std::size_t s = 0; s < schedules.size(); ++s) {
      const GenerateResult wanted =
          generate(whole.model, schedules[s].prompts, schedules[s].options(std::nullopt));
      for (const auto& of_rank : results) expect_same(schedules[s], of_rank[s], wanted);
      for (const auto& of_rank : results) {
        EXPECT_EQ(of_rank[s].times.prefill_tokens, results[0][s].times.prefill_tokens);
        EXPECT_EQ(tokens_of(of_rank[s]), tokens_of(results[0][s]));
      }
      n_preempted += results[0][s].steps.preempted;
    }
    return n_preempted;
  }

 private:
  static Prompts tokens_of(const GenerateResult& result) {
    Prompts tokens;
    for (const Answer& answer : result.answers) tokens.push_back(answer.tokens);
    return tokens;
  }

  static void expect_same(const Schedule& schedule, const GenerateResult& is,
                          const GenerateResult& wanted) {
    ASSERT_EQ(is.answers.size(), schedule.prompts.size());
    for (std::size_t i = 0; i < is.answers.size(); ++i) {
      expect_begins(is.answers[i], wanted.answers[i]);
      if (is.answers[i].stop == StopReason::kStopped) continue;
      EXPECT_EQ(is.answers[i].tokens, wanted.answers[i].tokens);
      EXPECT_EQ(is.answers[i].stop, wanted.answers[i].stop);
    }
    if (schedule.stopping_rank) return;
    EXPECT_EQ(is.times.prefill_tokens, wanted.times.prefill_tokens);
    EXPECT_EQ(is.times.decode_tokens, wanted.times.decode_tokens);
    // Sums over slices may differ in their last bits, and so may logits that are close.
    const shard::Topology& topology = GetParam();
    if (topology.tp > 1 || topology.etp > 1 || schedule.drafts > 0 || is.steps.preempted > 0)
      return;
    EXPECT_TRUE(is.near_ties == wanted.near_ties);
  }
};

TEST_P(Schedules, EndWithTheAnswersOfOneRank) {
  expect_answers_of_one_rank(kSmallest, random_schedules(25, 0));
}

TEST_P(Schedules, EndWithTheSameAnswersWithDrafts) {
  expect_answers_of_one_rank(kExample, random_schedules(4, 3));
}

// Each group has more than its caches hold.
TEST_P(Schedules, EndWhereCachesAreShort) {
  std::vector<Schedule> schedules(1);
  for (std::int32_t i = 0; i < 12; ++i) schedules[0].prompts.push_back({20 + i, 7, 9});
  schedules[0].max_new_tokens = 80;
  schedules[0].cache_tokens = 3 * KvCache::kPageTokens;
  EXPECT_GT(expect_answers_of_one_rank(kSmallest, schedules), 0U);
}

std::string topology_name(const ::testing::TestParamInfo<shard::Topology>& suite) {
  const shard::Topology& of = suite.param;
  return fmt::format("tp{}_ep{}_etp{}_pp{}", of.tp, of.ep, of.etp, of.pp);
}

INSTANTIATE_TEST_SUITE_P(Topologies, Schedules,
                         ::testing::Values(shard::Topology{.tp = 2, .ep = 4},
                                           shard::Topology{.ep = 2, .pp = 2}),
                         topology_name);
INSTANTIATE_TEST_SUITE_P(SlowTopologies, Schedules,
                         ::testing::Values(shard::Topology{.ep = 4},
                                           shard::Topology{.tp = 1, .ep = 2, .etp = 2}),
                         topology_name);

// The bytes that a step sends, collective by collective, agree with arithmetic: two groups of two
// ranks with rows of their own, experts over all four.

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
