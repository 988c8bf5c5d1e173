#include "inference/weights/expert_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::inference {
namespace {

using Claim = ExpertSlots::Claim;
using Phase = ExpertSlots::Phase;

// Six experts of ten bytes, room for three.
class Slots : public ::testing::Test {
 protected:
  ExpertSlots slots_{std::vector<std::uint64_t>(6, 10), 30};

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
  // Released, it goes at once: the budget is exceeded by what is held only.
  slots_.release(1);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(slots_.bytes_used(), 30U);
  slots_.release(0);
  EXPECT_THAT(present(), ::testing::ElementsAre(0, 2, 3)) << "within the budget nothing goes";
}

TEST_F(Slots, WantedExpertsYieldOnlyToNeededOnes) {
  for (const std::size_t i : {0U, 1U, 2U}) read(i);
  slots_.begin_list();
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
  slots_.begin_list();
  slots_.want(0);
  EXPECT_TRUE(slots_.is_wanted(0));
  slots_.begin_list();
  EXPECT_TRUE(slots_.is_wanted(0)) << "of the list before";
  slots_.begin_list();
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
  ExpertSlots slots({10, 10, 10, 25}, 30);
  for (const std::size_t i : {0U, 1U, 2U}) {
    slots.begin_read(i, Claim::kNow);
    slots.finish_read(i, std::make_shared<const Expert>());
  }
  slots.begin_read(3, Claim::kNow);
  EXPECT_EQ(slots.bytes_used(), 25U);
}

}  // namespace
}  // namespace ingot::inference
