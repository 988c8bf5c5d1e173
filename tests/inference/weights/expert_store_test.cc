#include "inference/weights/expert_store.h"

#include <chrono>

#include "inference/weights/expert_slots.h"
#include "tests/convert/program_decode.h"
#include "tests/inference/weights/linears.h"
#include "tests/support/test.h"

namespace ingot::inference {

using Claim = ExpertSlots::Claim;
using Phase = ExpertSlots::Phase;
using namespace ingot::testing;
using Pointer = std::shared_ptr<const Expert>;

namespace {

// Six experts of ten bytes, room for three.
class Slots : public ::testing::Test {
 protected:
  ExpertSlots slots_{std::vector<ExpertSlots::Size>(6, {.n_bytes = 10}), 30};

  void read(std::size_t i, Claim claim = Claim::kNow) {
    slots_.begin_read(i, claim);
    slots_.finish_read(i, std::make_shared<const Expert>());
  }
  std::vector<std::size_t> present() const {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < 6; ++i) {
      if (slots_.phase(i) == Phase::kReady) ready.push_back(i);
    }
    return ready;
  }
};

TEST_F(Slots, TheLongestUnusedGoesFirst) {
  for (const std::size_t i : {0U, 1U, 2U}) read(i);
  EXPECT_NE(slots_.use(0), nullptr);
  read(3);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3));
  read(4);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 3, 4));
  EXPECT_EQ(slots_.bytes_used(), 30U);
}

// Two layers of three experts, of which every step uses all: with room for three, those of the
// layer to come wait for it.
TEST(LayersInTurn, KeepWhatTheNextLayerUses) {
  ExpertSlots slots({{10, 1}, {10, 1}, {10, 1}, {10, 4}, {10, 4}, {10, 4}}, 30);
  std::size_t reads = 0;
  for (std::size_t step = 0; step < 20; ++step) {
    for (const std::size_t first : {0U, 3U}) {
      slots.begin_list(first == 0 ? 1 : 4);
      for (std::size_t i = first; i < first + 3; ++i) slots.want(i);
      for (std::size_t i = first; i < first + 3; ++i) {
        slots.forget(i);
        if (slots.phase(i) == Phase::kAbsent) {
          ++reads;
          slots.begin_read(i, Claim::kNow);
          slots.finish_read(i, std::make_shared<const Expert>());
        }
        slots.use(i);
      }
    }
  }
  EXPECT_LT(reads, 90U) << "all of 120, were the oldest to go";
}

TEST(LayersInTurn, ReadingAheadSparesLayersToCome) {
  ExpertSlots slots({{10, 0}, {10, 0}, {10, 0}, {10, 1}, {10, 1}}, 20);
  const auto read = [&](std::size_t i, Claim claim) {
    slots.begin_read(i, claim);
    slots.finish_read(i, std::make_shared<const Expert>());
  };
  slots.begin_list(1);
  for (const std::size_t i : {3U, 4U}) read(i, Claim::kNow);
  slots.begin_list(0);
  for (const std::size_t i : {0U, 1U, 2U}) slots.want(i);
  EXPECT_TRUE(slots.can_make_room(0, Claim::kAhead)) << "else nothing would be read ahead";
  read(0, Claim::kAhead);
  EXPECT_FALSE(slots.can_make_room(1, Claim::kAhead)) << "0 waits, and 4 comes again";
  slots.forget(0);
  slots.hold(0);
  EXPECT_TRUE(slots.can_make_room(1, Claim::kAhead)) << "0 is in use";
  slots.release(0);
  read(1, Claim::kAhead);
  EXPECT_EQ(slots.phase(0), Phase::kAbsent) << "its layer comes later than that of 4";
  EXPECT_EQ(slots.phase(4), Phase::kReady);
}

TEST(LayersInTurn, WhatStepsLeaveUnusedGoesFirst) {
  ExpertSlots slots({{10, 0}, {10, 0}, {10, 1}, {10, 1}}, 30);
  const auto use = [&](std::uint32_t layer, std::size_t i) {
    slots.begin_list(layer);
    if (slots.phase(i) == Phase::kAbsent) {
      slots.begin_read(i, Claim::kNow);
      slots.finish_read(i, std::make_shared<const Expert>());
    }
    slots.use(i);
  };
  use(0, 0);
  use(1, 2);
  use(0, 1);
  use(1, 3);
  EXPECT_EQ(slots.phase(2), Phase::kAbsent) << "this step does without it, and its layer is past";
  use(0, 1);
  use(1, 2);
  EXPECT_EQ(slots.phase(0), Phase::kAbsent) << "two steps did without it";
  EXPECT_EQ(slots.phase(3), Phase::kReady);
}

TEST_F(Slots, HeldExpertsStayWithinOneOverrun) {
  for (const std::size_t i : {0U, 1U, 2U}) {
    read(i);
    slots_.hold(i);
  }
  EXPECT_FALSE(slots_.can_make_room(3, Claim::kNow));
  EXPECT_FALSE(slots_.can_make_room(3, Claim::kAhead));
  read(3);
  EXPECT_EQ(slots_.bytes_used(), 40U);
  slots_.hold(3);
  // Released, it goes at once: only held experts exceed the budget.
  slots_.release(1);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(slots_.bytes_used(), 30U);
  slots_.release(0);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3)) << "within the budget nothing goes";
}

TEST_F(Slots, WantedExpertsYieldOnlyToNeededOnes) {
  for (const std::size_t i : {0U, 1U, 2U}) read(i);
  slots_.begin_list(0);
  slots_.want(2);
  slots_.want(0);
  slots_.want(3);
  read(3, Claim::kAhead);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3)) << "1 was not wanted";
  EXPECT_FALSE(slots_.can_make_room(4, Claim::kAhead));
  EXPECT_TRUE(slots_.can_make_room(4, Claim::kNow));
  read(4);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 4)) << "3 was to be used last";
  slots_.forget(2);
  EXPECT_TRUE(slots_.can_make_room(5, Claim::kAhead));
}

TEST_F(Slots, WantsOfOldListsPinNothing) {
  read(0);
  slots_.begin_list(0);
  slots_.want(0);
  EXPECT_TRUE(slots_.is_wanted(0));
  slots_.begin_list(0);
  EXPECT_TRUE(slots_.is_wanted(0)) << "of the list before";
  slots_.begin_list(0);
  EXPECT_FALSE(slots_.is_wanted(0));
}

TEST_F(Slots, AReadThatFailsGivesItsRoomBack) {
  slots_.begin_read(0, Claim::kAhead);
  EXPECT_EQ(slots_.bytes_used(), 10U);
  EXPECT_EQ(slots_.phase(0), Phase::kReading);
  slots_.fail_read(0, std::make_exception_ptr(1));
  EXPECT_EQ(slots_.bytes_used(), 0U);
  EXPECT_EQ(slots_.phase(0), Phase::kFailed);
  EXPECT_THROW(std::rethrow_exception(slots_.take_failure(0)), int);
  EXPECT_EQ(slots_.phase(0), Phase::kAbsent);
  slots_.begin_read(0, Claim::kNow);
  slots_.fail_read(0, nullptr);
  EXPECT_EQ(slots_.phase(0), Phase::kAbsent);
}

TEST(UnequalSlots, AsManyGoAsTheNewOneNeeds) {
  ExpertSlots slots({{10}, {10}, {10}, {25}}, 30);
  for (const std::size_t i : {0U, 1U, 2U}) {
    slots.begin_read(i, Claim::kNow);
    slots.finish_read(i, std::make_shared<const Expert>());
  }
  slots.begin_read(3, Claim::kNow);
  EXPECT_EQ(slots.bytes_used(), 25U);
}

// 16 experts in each of the layers 1 to 4 and the MTP layer 5, all of one size.
class Experts : public ::testing::Test {
 protected:
  const formats::Checkpoint source_ = formats::Checkpoint::open(ingot::testing::example());
  const WeightStore store_{source_, Profile::kF32, 1};
  const ExpertShape shape_ = {.experts = ingot::testing::experts_of({1, 2, 3, 4, 5}, 0, 16),
                              .n_experts = 16,
                              .hidden = 256,
                              .intermediate = 128,
                              .inner = {.first = 0, .count = 128}};
  const std::uint64_t one_ = ExpertStore::need(store_, shape_).largest;

  ExpertStore with_room_for(std::size_t n) const { return {store_, shape_, n * one_, 1}; }

  // The checkpoint's values, by the other decoder.
  std::vector<float> stored(std::uint32_t layer, std::uint32_t expert, const char* module) const {
    const std::string name =
        fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", layer, expert, module);
    for (const auto& tensor : source_.tensors()) {
      if (tensor.name == name) return ingot::testing::decoded(source_, tensor);
    }
    ADD_FAILURE() << name;
    return {};
  }
  void expect_right(const Pointer& pointer, std::uint32_t layer, std::uint32_t expert) const {
    EXPECT_TRUE(decoded_rows(pointer->gate) == stored(layer, expert, "gate"));
    EXPECT_TRUE(decoded_rows(pointer->up) == stored(layer, expert, "up"));
    EXPECT_TRUE(decoded_rows(pointer->down) == stored(layer, expert, "down"));
  }
};

// Until the thread that reads ahead has nothing to do any more.
template <typename Condition>
void wait_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(condition());
}

TEST_F(Experts, NeedWhatTheirTensorsTake) {
  const ExpertStore::Need need = ExpertStore::need(store_, shape_);
  // Three matrices of 128 x 256 codes; two scales each, to a cache line.
  EXPECT_EQ(need.largest, 3U * (128 * 256 + 64));
  EXPECT_EQ(need.all, 5U * 16 * need.largest);
}

TEST_F(Experts, AreAllReadAtOnceWhenTheyFit) {
  for (const std::size_t threads : {1U, 4U}) {
    ExpertStore experts(store_, shape_, 80 * one_, threads);
    EXPECT_TRUE(experts.all_resident());
    EXPECT_EQ(experts.bytes_held(), 80 * one_);
    const std::vector<std::uint32_t> some = {1, 2};
    experts.prefetch(3, some);
    for (const std::uint32_t layer : {1U, 3U, 5U}) expect_right(experts.get(layer, 7), layer, 7);
    EXPECT_EQ(experts.counters().hits, 3U);
    EXPECT_EQ(experts.counters().misses, 0U);
    EXPECT_EQ(experts.counters().bytes_read, 80 * one_);
  }
}

TEST_F(Experts, DoNotReadOtherRanks) {
  ExpertShape mine = shape_;
  mine.experts = ingot::testing::experts_of({1, 2, 3, 4, 5}, 12, 4);
  ExpertStore experts(store_, mine, 20 * one_, 1);
  EXPECT_TRUE(experts.all_resident());
  EXPECT_EQ(experts.bytes_held(), 20 * one_);
  expect_right(experts.get(2, 12), 2, 12);
  expect_right(experts.get(5, 15), 5, 15);
  expect_error(ErrorCode::kInternal, {}, [&] { experts.get(2, 11); });
  expect_error(ErrorCode::kInternal, {}, [&] { experts.get(0, 12); });
}

TEST_F(Experts, NeedRoomForTwo) {
  ExpertStore experts = with_room_for(2);
  EXPECT_FALSE(experts.all_resident());
  expect_error(ErrorCode::kLimit,
               {fmt::format("{} bytes are left", 2 * one_ - 1),
                fmt::format("two of the largest take {}", 2 * one_),
                fmt::format("all of them {}", 80 * one_), "raise --mem-limit by 1"},
               [&] { ExpertStore(store_, shape_, 2 * one_ - 1, 1); });
}

TEST_F(Experts, EvictTheLeastRecentlyUsed) {
  ExpertStore experts = with_room_for(3);
  for (const std::uint32_t e : {0U, 1U, 2U, 0U, 3U}) expect_right(experts.get(1, e), 1, e);
  EXPECT_EQ(experts.counters().hits, 1U);
  EXPECT_EQ(experts.counters().misses, 4U);
  experts.get(1, 0);
  experts.get(1, 2);
  EXPECT_EQ(experts.counters().hits, 3U) << "1 had to go for 3";
  experts.get(1, 1);
  EXPECT_EQ(experts.counters().misses, 5U);
  EXPECT_EQ(experts.counters().bytes_read, 5 * one_);
  EXPECT_EQ(experts.bytes_held(), 3 * one_);
}

TEST_F(Experts, StayWhileHeld) {
  ExpertStore experts = with_room_for(2);
  std::vector<Pointer> held;
  for (std::uint32_t e = 0; e < 4; ++e) held.push_back(experts.get(1, e));
  EXPECT_EQ(experts.bytes_held(), 4 * one_);
  for (std::uint32_t e = 0; e < 4; ++e) expect_right(held[e], 1, e);
  EXPECT_EQ(experts.get(1, 2), held[2]);
  held.pop_back();
  EXPECT_EQ(experts.bytes_held(), 3 * one_);
  held.erase(held.begin());
  EXPECT_EQ(experts.bytes_held(), 2 * one_);
  held.clear();
  EXPECT_EQ(experts.bytes_held(), 2 * one_);
}

TEST_F(Experts, OutliveTheirStore) {
  Pointer expert;
  {
    ExpertStore experts = with_room_for(2);
    expert = experts.get(4, 9);
  }
  expect_right(expert, 4, 9);
}

TEST_F(Experts, AreReadAheadWithinTheBudget) {
  ExpertStore experts = with_room_for(4);
  const Pointer held = experts.get(1, 0);
  const std::vector<std::uint32_t> chosen = {5, 6, 7, 8, 9};
  experts.prefetch(2, chosen);
  wait_for([&] { return experts.counters().bytes_read == 4 * one_; });
  EXPECT_EQ(experts.bytes_held(), 4 * one_) << "the held one and three of five";
  for (const std::uint32_t e : {5U, 6U, 7U}) {
    const Pointer expert = experts.get(2, e);
    expect_right(expert, 2, e);
    EXPECT_LE(experts.bytes_held(), 4 * one_);
  }
  EXPECT_EQ(experts.counters().hits, 3U);
  // Experts that have been used make room for the rest.
  wait_for([&] { return experts.counters().bytes_read == 6 * one_; });
  for (const std::uint32_t e : {8U, 9U}) expect_right(experts.get(2, e), 2, e);
  EXPECT_EQ(experts.counters().hits, 5U);
  EXPECT_EQ(experts.counters().misses, 1U);
  EXPECT_EQ(experts.counters().bytes_read, 6 * one_);
  EXPECT_EQ(experts.bytes_held(), 4 * one_);
}

TEST_F(Experts, AreReadOnceWhetherAheadOrNow) {
  ExpertStore experts = with_room_for(40);
  std::uint64_t used = 0;
  for (const std::uint32_t layer : {1U, 2U}) {
    std::vector<std::uint32_t> chosen;
    for (std::uint32_t e = 0; e < 16; ++e) chosen.push_back(e);
    experts.prefetch(layer, chosen);
    // At once, so that some are read here, some there, and some are waited for.
    for (const std::uint32_t e : chosen) {
      expect_right(experts.get(layer, e), layer, e);
      ++used;
    }
  }
  EXPECT_EQ(experts.counters().bytes_read, 32 * one_);
  EXPECT_EQ(experts.counters().hits + experts.counters().misses, used);
}

TEST_F(Experts, UnusedOnesMakeRoom) {
  ExpertStore experts = with_room_for(3);
  const std::vector<std::uint32_t> chosen = {1, 2, 3};
  for (const std::uint32_t layer : {1U, 2U, 3U, 4U, 5U}) experts.prefetch(layer, chosen);
  // The lists of layers 4 and 5 count; those before pin nothing.
  wait_for([&] { return experts.bytes_held() == 3 * one_; });
  for (const std::uint32_t e : chosen) {
    const Pointer expert = experts.get(5, e);
    expect_right(expert, 5, e);
    EXPECT_LE(experts.bytes_held(), 3 * one_);
  }
}

TEST_F(Experts, ManyThreadsStayWithinTheBudget) {
  ExpertStore experts = with_room_for(6);
  std::vector<std::uint64_t> sums(5);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint32_t i = 0; i < 60; ++i) {
          const std::uint32_t layer = 1 + (i + t) % 5;
          const std::vector<std::uint32_t> chosen = {i * 7 % 16, (i * 5 + t) % 16};
          experts.prefetch(layer, chosen);
          for (const std::uint32_t e : chosen) {
            const Pointer expert = experts.get(layer, e);
            // One in use per thread, and one that is being read ahead.
            EXPECT_LE(experts.bytes_held(), 6 * one_);
            if (i % 20 == 0) expect_right(expert, layer, e);
          }
        }
      });
    }
  }
  const ExpertCounters counters = experts.counters();
  EXPECT_EQ(counters.hits + counters.misses, 4U * 60 * 2);
}

class BrokenExperts : public ::testing::Test {
 protected:
  // Cuts the file of a tensor off in front of it, once the checkpoint is open.
  void cut_off(const formats::Checkpoint& source, const std::string& name) {
    for (const auto& stored : source.stored()) {
      if (stored.name == name) {
        std::filesystem::resize_file(directory_ / "m" / source.files()[stored.file].name,
                                     stored.offset);
        return;
      }
    }
    FAIL() << name;
  }
  // The expert weight that comes last in its file.
  static formats::LogicalTensor last_expert(const formats::Checkpoint& source) {
    const formats::LogicalTensor* last = nullptr;
    std::uint64_t offset = 0;
    for (const auto& tensor : source.tensors()) {
      const auto& stored = source.stored()[tensor.encoding.stored.weight()];
      if (tensor.expert && stored.offset >= offset) {
        last = &tensor;
        offset = stored.offset;
      }
    }
    return *last;
  }
  BrokenExperts() {
    std::filesystem::copy(ingot::testing::example(), directory_ / "m",
                          std::filesystem::copy_options::recursive);
  }

  TempDir directory_;
  const ExpertShape shape_ = {.experts = ingot::testing::experts_of({1, 2, 3, 4, 5}, 0, 16),
                              .n_experts = 16,
                              .hidden = 256,
                              .intermediate = 128,
                              .inner = {.first = 0, .count = 128}};
};

TEST_F(BrokenExperts, AreReportedWhereTheyAreAskedFor) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "m");
  const WeightStore store(source, Profile::kF32, 1);
  const std::uint64_t one = ExpertStore::need(store, shape_).largest;
  ExpertStore experts(store, shape_, 20 * one, 1);
  const formats::LogicalTensor broken = last_expert(source);
  const std::uint32_t layer = broken.layer.value(), expert = broken.expert.value();
  const std::string& name =
      source.files()[source.stored()[broken.encoding.stored.weight()].file].name;
  const auto written = std::filesystem::last_write_time(directory_ / "m" / name);
  cut_off(source, broken.name);
  const std::vector<std::uint32_t> chosen = {expert};
  const auto get = [&] { static_cast<void>(experts.get(layer, expert)); };

  experts.prefetch(layer, chosen);
  for (int attempt = 0; attempt < 3; ++attempt)
    expect_error(ErrorCode::kMismatch, {".safetensors", "after its header was read"}, get);
  EXPECT_EQ(experts.bytes_held(), 0U);
  EXPECT_EQ(experts.counters().misses, 0U);
  // The rest goes on, and so does this one once it is whole.
  experts.prefetch(layer, chosen);
  std::filesystem::copy_file(ingot::testing::example() / name, directory_ / "m" / name,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::last_write_time(directory_ / "m" / name, written);
  // With a further link, the time of its last change does not tell that it was written to.
  std::filesystem::create_hard_link(directory_ / "m" / name, directory_ / "kept");
  try {
    get();
  } catch (const Error&) {
    get();  // read ahead before it was whole
  }
  EXPECT_GE(experts.bytes_held(), one);
}

TEST_F(BrokenExperts, AreReportedAtOnceWhenAllAreRead) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "m");
  const WeightStore store(source, Profile::kF32, 1);
  cut_off(source, last_expert(source).name);
  expect_error(ErrorCode::kMismatch, {".safetensors", "after its header was read"},
               [&] { ExpertStore(store, shape_, ExpertStore::need(store, shape_).all, 3); });
}

TEST_F(BrokenExperts, NameAnotherModelsExperts) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "m");
  const WeightStore store(source, Profile::kF32, 1);
  ExpertShape more = shape_;
  more.n_experts = 17;
  more.experts = ingot::testing::experts_of({1, 2, 3, 4, 5}, 0, 17);
  expect_error(ErrorCode::kMissingTensor, {"model.layers.1.mlp.experts.16.gate_proj.weight"},
               [&] { static_cast<void>(ExpertStore::need(store, more)); });
  ExpertShape wider = shape_;
  wider.intermediate = wider.inner.count = 144;
  expect_error(ErrorCode::kShapeMismatch,
               {"experts.0.gate_proj.weight", "[128, 256]", "[144, 256]"},
               [&] { static_cast<void>(ExpertStore::need(store, wider)); });
}

}  // namespace

}  // namespace ingot::inference
