#include "inference/parallel/comm.h"

#include <mutex>

#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using ingot::testing::expect_error;
using Numbers = std::vector<std::size_t>;

constexpr Collective kSum = {.group = Group::kTensor, .name = "sum"};

Bytes text(const std::string& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

TEST(Groups, AreTheRanksThatMeet) {
  // Two stages of 12 ranks: two tensor groups of 6, three expert groups of 4.
  const shard::Topology topology = {.tp = 6, .ep = 2, .etp = 2, .pp = 2};
  ASSERT_EQ(topology.n_ranks(), 24U);
  const auto place = [&](std::uint32_t rank, Group group) {
    const GroupPlace at = group_place(topology, rank, group);
    return Numbers{at.index, at.rank, at.size};
  };
  EXPECT_EQ(place(0, Group::kTensor), (Numbers{0, 0, 6}));
  EXPECT_EQ(place(7, Group::kTensor), (Numbers{1, 1, 6}));
  EXPECT_EQ(place(13, Group::kTensor), (Numbers{2, 1, 6}));
  EXPECT_EQ(place(7, Group::kExpert), (Numbers{1, 3, 4}));
  EXPECT_EQ(place(20, Group::kExpert), (Numbers{5, 0, 4}));
  EXPECT_EQ(place(7, Group::kPipeline), (Numbers{7, 0, 2}));
  EXPECT_EQ(place(19, Group::kPipeline), (Numbers{7, 1, 2}));
  EXPECT_EQ(place(19, Group::kWorld), (Numbers{0, 19, 24}));
}

// 2^24 swallows small numbers that are added to it one by one, so any other order gives another
// sum.
TEST(AllReduce, AddsInRankOrder) {
  const std::vector<float> given = {16777216.0F, 1.0F, 1.0F, -16777216.0F};
  std::vector<float> sums(4);
  run_ranks({.tp = 4}, [&](std::uint32_t rank, Comm& comm) {
    sums[rank] = given[rank];
    comm.all_reduce(kSum, {&sums[rank], 1});
  });
  EXPECT_EQ(sums, std::vector<float>(4, 0.0F));
}

TEST(AllGather, TakesDifferentAmounts) {
  std::vector<std::vector<float>> all(3);
  run_ranks({.tp = 3}, [&](std::uint32_t rank, Comm& comm) {
    all[rank] = all_gather(comm, kSum, std::vector<float>(rank, static_cast<float>(rank)));
  });
  for (const auto& values : all) EXPECT_EQ(values, (std::vector<float>{1, 2, 2}));
}

TEST(Exchange, GivesEachRankWhatIsForIt) {
  std::vector<std::vector<Bytes>> received(4);
  run_ranks({.ep = 4}, [&](std::uint32_t rank, Comm& comm) {
    const Collective what = {.group = Group::kExpert, .name = "words"};
    std::vector<Bytes> send;
    for (std::uint32_t to = 0; to < 4; ++to) send.push_back(text(std::to_string(rank * 10 + to)));
    send[2].clear();
    received[rank] = exchange(comm, what, std::move(send));
  });
  for (std::size_t to = 0; to < 4; ++to) {
    for (std::size_t from = 0; from < 4; ++from) {
      EXPECT_EQ(received[to][from], to == 2 ? Bytes() : text(std::to_string(from * 10 + to)));
    }
  }
}

TEST(Exchange, LeavesOtherGroupsFree) {
  run_ranks({.tp = 2, .ep = 2}, [](std::uint32_t, Comm& comm) {
    const Collective slow = {.group = Group::kExpert, .name = "slow"};
    comm.start(slow, {text("a"), text("b")});
    float one = 1;
    comm.all_reduce(kSum, {&one, 1});
    EXPECT_EQ(one, 2.0F);
    EXPECT_EQ(comm.finish(slow).size(), 2U);
  });
}

TEST(HandOver, ReachesTheNextStageAlone) {
  std::vector<Bytes> received(3);
  run_ranks({.pp = 3}, [&](std::uint32_t rank, Comm& comm) {
    const Collective what = {.group = Group::kPipeline, .name = "hidden"};
    received[rank] = hand_over(comm, what, 1, text(std::to_string(rank)));
  });
  EXPECT_EQ(received, (std::vector<Bytes>{{}, {}, text("1")}));
}

TEST(Broadcast, IsWhatOneRankHas) {
  std::vector<float> values(3);
  run_ranks({.pp = 3}, [&](std::uint32_t rank, Comm& comm) {
    values[rank] = static_cast<float>(rank);
    broadcast(comm, {.group = Group::kPipeline, .name = "last"}, 2, {&values[rank], 1});
  });
  EXPECT_EQ(values, (std::vector<float>{2, 2, 2}));
}

TEST(Broadcast, TakesAnyNumberOfBytesAndLists) {
  constexpr Collective kBytes = {.group = Group::kExpert, .name = "bytes"};
  constexpr Collective kLists = {.group = Group::kExpert, .name = "lists"};
  for (const std::size_t n : {0U, 1U, 100'000U}) {
    const Bytes bytes = text(std::string(n, 'x'));
    const Lists lists(std::min<std::size_t>(n, 3), std::vector<std::int32_t>(n, -7));
    std::vector<int> agree(4);
    for (std::uint32_t from : {0U, 3U}) {
      run_ranks({.ep = 4}, [&](std::uint32_t rank, Comm& comm) {
        const bool gives = rank == from;
        agree[rank] += broadcast(comm, kBytes, from, gives ? bytes : text("other")) == bytes;
        agree[rank] += broadcast(comm, kLists, from, gives ? lists : Lists{{1}, {}}) == lists;
      });
    }
    EXPECT_EQ(agree, std::vector<int>(4, 4)) << n;
  }
}

TEST(AllGather, OfNothingIsNothing) {
  run_ranks({.tp = 3}, [](std::uint32_t, Comm& comm) {
    EXPECT_TRUE(all_gather(comm, kSum, {}).empty());
    comm.all_reduce(kSum, {});
    broadcast(comm, kSum, 1, std::span<float>());
  });
}

TEST(Traffic, CountsWhatLeavesTheRank) {
  run_ranks({.tp = 4}, [&](std::uint32_t rank, Comm& comm) {
    std::vector<float> values(10);
    for (int i = 0; i < 3; ++i) comm.all_reduce(kSum, values);
    const Collective second = {.group = Group::kTensor, .name = "sum", .layer = 7};
    exchange(comm, second, std::vector<Bytes>(4, rank == 0 ? text("four") : Bytes()));
    ASSERT_EQ(comm.traffic().size(), 2U);
    const Traffic& sum = comm.traffic().at(kSum);
    EXPECT_EQ(sum.n_meetings, 3U);
    EXPECT_EQ(sum.n_messages, 9U);
    EXPECT_EQ(sum.n_bytes, 9U * 40);
    EXPECT_EQ(comm.traffic().at(second).n_messages, rank == 0 ? 3U : 0U);
    EXPECT_EQ(comm.traffic().at(second).n_bytes, rank == 0 ? 12U : 0U);
  });
}

TEST(Traffic, OfOneRankIsNone) {
  OneRank comm;
  std::vector<float> values(10);
  comm.all_reduce(kSum, values);
  EXPECT_EQ(all_gather(comm, kSum, values), values);
  EXPECT_EQ(exchange(comm, kSum, {text("a")}), std::vector<Bytes>{text("a")});
  EXPECT_EQ(comm.traffic().at(kSum).n_messages, 0U);
}

TEST(RanksAsThreads, AFailureReleasesTheOthers) {
  const auto fail = [] {
    run_ranks({.tp = 4}, [](std::uint32_t rank, Comm& comm) {
      if (rank == 2) throw std::runtime_error("down");
      float value = 1;
      comm.all_reduce(kSum, {&value, 1});
    });
  };
  EXPECT_THROW(
      {
        try {
          fail();
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "down");
          throw;
        }
      },
      std::runtime_error);
}

TEST(RanksAsThreads, NoticeThatOneCameForSomethingElse) {
  expect_error(ErrorCode::kInternal, {"ranks", "have come for", "'sum'", "'other'"}, [] {
    run_ranks({.tp = 2}, [](std::uint32_t rank, Comm& comm) {
      const Collective other = {.group = Group::kTensor, .name = "other"};
      exchange(comm, rank == 0 ? kSum : other, std::vector<Bytes>(2));
    });
  });
}

}  // namespace
}  // namespace ingot::inference
