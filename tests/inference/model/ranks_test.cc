#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "inference/parallel/comm.h"
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

using Bytes = std::vector<std::byte>;

/// Where the members of one group meet and hand each other bytes.
class MeetingPoint {
 public:
  explicit MeetingPoint(std::size_t n) : n_(n), posted_(n) {}

  /// What every member has sent to `me`. Members that come for different things fail.
  std::vector<Bytes> exchange(std::size_t me, const std::string& purpose, std::vector<Bytes> send) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return n_leaving_ == 0; });
    if (n_here_ == 0) purpose_ = purpose;
    if (purpose_ != purpose) {
      throw std::runtime_error("one rank came for " + purpose + ", another for " + purpose_);
    }
    posted_[me] = std::move(send);
    if (++n_here_ == n_) {
      n_here_ = 0;
      n_leaving_ = n_;
      ++meetings_;
      changed_.notify_all();
    } else {
      const std::size_t before = meetings_;
      wait(lock, [&] { return meetings_ != before; });
    }
    std::vector<Bytes> received;
    for (const auto& from : posted_) received.push_back(from.at(me));
    if (--n_leaving_ == 0) changed_.notify_all();
    return received;
  }

  /// Nobody is to wait here any more.
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    changed_.wait(lock, [&] { return abandoned_ || condition(); });
    if (abandoned_) throw std::runtime_error("another rank has failed");
  }

  std::size_t n_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Bytes>> posted_;
  std::string purpose_;
  std::size_t n_here_ = 0, n_leaving_ = 0, meetings_ = 0;
  bool abandoned_ = false;
};

/// The collectives of one rank.
class ThreadComm final : public inference::Comm {
 public:
  struct Seat {
    MeetingPoint* at = nullptr;
    std::size_t rank = 0, size = 1;
  };
  ThreadComm(Seat tensor, Seat expert) : tensor_(tensor), expert_(expert) {}

  void all_reduce(inference::Group group, std::span<float> values) override {
    const std::vector<Bytes> all =
        to_all(group, "all_reduce of " + std::to_string(values.size()), std::as_bytes(values));
    std::ranges::fill(values, 0.0F);
    for (const Bytes& from : all) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        float value = 0;
        std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
        values[i] += value;
      }
    }
  }

  std::vector<float> all_gather(inference::Group group, std::span<const float> mine) override {
    std::vector<float> joined;
    for (const Bytes& from : to_all(group, "all_gather", std::as_bytes(mine))) {
      const std::size_t at = joined.size();
      joined.resize(at + from.size() / sizeof(float));
      if (!from.empty()) std::memcpy(joined.data() + at, from.data(), from.size());
    }
    return joined;
  }

  std::vector<std::vector<std::byte>> all_to_all_v(
      inference::Group group, const std::vector<std::vector<std::byte>>& send) override {
    const Seat& seat = seat_of(group);
    if (send.size() != seat.size) throw std::runtime_error("not a message for every rank");
    return seat.at->exchange(seat.rank, "all_to_all_v", send);
  }

 private:
  [[nodiscard]] const Seat& seat_of(inference::Group group) const {
    return group == inference::Group::kTensor ? tensor_ : expert_;
  }
  std::vector<Bytes> to_all(inference::Group group, const std::string& purpose,
                            std::span<const std::byte> bytes) const {
    const Seat& seat = seat_of(group);
    return seat.at->exchange(seat.rank, purpose,
                             std::vector<Bytes>(seat.size, Bytes(bytes.begin(), bytes.end())));
  }

  Seat tensor_, expert_;
};

/// How many ranks there are and what they share: `dp` groups of `tp`, experts dealt over `ep` of
/// them.
struct WorldShape {
  std::size_t dp = 1, tp = 1, ep = 1;
  [[nodiscard]] std::size_t n_ranks() const { return dp * tp; }
  [[nodiscard]] inference::RankView view(std::size_t rank) const {
    return {.tp_rank = rank % tp, .tp_size = tp, .ep_rank = rank % ep, .ep_size = ep};
  }
  /// Which of the data-parallel groups.
  [[nodiscard]] std::size_t group(std::size_t rank) const { return rank / tp; }
};

/// Runs `body(rank, view, comm)` for every rank on a thread of its own. When one fails the others
/// are released, and its exception is thrown.
void run_ranks(
    const WorldShape& shape,
    const std::function<void(std::size_t, const inference::RankView&, inference::Comm&)>& body) {
  std::map<std::size_t, std::unique_ptr<MeetingPoint>> tensor, expert;
  for (std::size_t r = 0; r < shape.n_ranks(); ++r) {
    if (!tensor[r / shape.tp]) tensor[r / shape.tp] = std::make_unique<MeetingPoint>(shape.tp);
    if (!expert[r / shape.ep]) expert[r / shape.ep] = std::make_unique<MeetingPoint>(shape.ep);
  }
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < shape.n_ranks(); ++r) {
    threads.emplace_back([&, r] {
      const inference::RankView view = shape.view(r);
      ThreadComm comm({tensor.at(r / shape.tp).get(), view.tp_rank, view.tp_size},
                      {expert.at(r / shape.ep).get(), view.ep_rank, view.ep_size});
      try {
        body(r, view, comm);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
        for (const auto* points : {&tensor, &expert}) {
          for (const auto& [index, point] : *points) point->abandon();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

constexpr const char* kTiny = "examples/tiny-v32";
constexpr const char* kQwen = "tests/golden/arch/qwen3_moe/checkpoint";

struct Case {
  const char* name;
  const char* checkpoint;
  WorldShape shape;
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
    const Model model(source, view, comm, f32_options(AttentionForm::kAuto, 1));
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
      is[rank] = run_schedule(Model(source, view, comm, options), shape.group(rank));
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
    read[rank] = Model(source, view, comm, f32_options()).bytes_read();
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
               [&] { Model(source, view, comm, f32_options()); });
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
