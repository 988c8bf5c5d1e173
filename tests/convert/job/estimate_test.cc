#include "convert/job/estimate.h"

#include "tests/convert/conversion.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

TEST(TimeEstimate, TheSlowestOfThreeDecides) {
  TimeEstimate time{.reading = {.n_bytes = 100, .per_second = 10},
                    .writing = {.n_bytes = 100, .per_second = 5},
                    .computing = {.n_bytes = 100, .per_second = 50}};
  EXPECT_DOUBLE_EQ(time.seconds(), 20);
  EXPECT_STREQ(time.limit(), "writing");
  time.reading.per_second = 2;
  EXPECT_DOUBLE_EQ(time.seconds(), 50);
  EXPECT_STREQ(time.limit(), "reading");
  time.computing.per_second = 1;
  EXPECT_DOUBLE_EQ(time.seconds(), 100);
  EXPECT_STREQ(time.limit(), "computing");
}

TEST(TimeEstimate, ReadingAndWritingOfOneDiskAddUp) {
  const TimeEstimate time{.reading = {.n_bytes = 100, .per_second = 10},
                          .writing = {.n_bytes = 100, .per_second = 5},
                          .computing = {.n_bytes = 100, .per_second = 4},
                          .has_one_disk = true};
  EXPECT_DOUBLE_EQ(time.seconds(), 30);
  EXPECT_STREQ(time.limit(), "writing");
}

TEST(TimeEstimate, WhatWasNotMeasuredIsSaid) {
  const TimeEstimate time{
      .reading = {.n_bytes = 100}, .writing = {.n_bytes = 1, .per_second = 1}, .computing = {}};
  EXPECT_FALSE(time.is_complete());
  EXPECT_DOUBLE_EQ(time.seconds(), 1);
}

TEST(TimeEstimate, ManyThreadsComputeNoLongerThanTwo) {
  EXPECT_DOUBLE_EQ(trial_seconds(1, 0.4), 0.4);
  EXPECT_DOUBLE_EQ(trial_seconds(2, 0.4), 0.4);
  EXPECT_DOUBLE_EQ(16 * trial_seconds(16, 0.4), 2 * 0.4);
}

// Every pair of schemes that a plan may have is measured, and nothing stays on the disk.
TEST(TimeEstimate, MeasuresEveryTargetAndLeavesNothing) {
  const formats::Checkpoint source = formats::Checkpoint::open(small_v32());
  const TempDir directory;
  for (const formats::SchemeFacts& scheme : formats::schemes()) {
    if (scheme.to_word.empty()) continue;
    SCOPED_TRACE(std::string(scheme.name));
    Recipe recipe;
    recipe.to = scheme.id;
    const Plan plan = plan_conversion(source, recipe, {});
    const TimeEstimate time = estimate_time(plan, directory / "none" / "out", 1, 0.1);
    EXPECT_EQ(time.reading.n_bytes, plan.sizes.bytes_in);
    EXPECT_EQ(time.writing.n_bytes, plan.sizes.bytes_out);
    EXPECT_GT(time.reading.per_second, 0);
    EXPECT_GT(time.seconds(), 0);
    const bool computes = plan.counts.cast + plan.counts.quantized > 0;
    EXPECT_EQ(time.computing.per_second > 0, computes);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace ingot::convert
