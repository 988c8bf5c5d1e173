#include <gtest/gtest.h>

#include "convert/run/memory_plan.h"
#include "formats/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// A plan without tables: 24 MiB are the program's, 4 MiB each thread's.
MemoryPlan divide(std::size_t threads, std::uint64_t mem_limit, std::uint64_t open_targets) {
  const ingot::testing::TempDir directory;
  ingot::testing::tiny_deepseek_v3().write(directory.path());
  const auto source = formats::Checkpoint::open(directory.path());
  Plan plan{.source = source};
  plan.sizes.open_targets = open_targets;
  return plan_memory(plan, threads, mem_limit);
}

void expect_windows(const MemoryPlan& memory, std::uint64_t n, std::uint64_t n_bytes) {
  EXPECT_EQ(memory.n_windows, n);
  EXPECT_EQ(memory.window_bytes, n_bytes);
}

TEST(Resources, GiveAnUnslicedJobFewLargeWindows) {
  expect_windows(divide(2, 1024 * kMiB, 1), 24, 8 * kMiB);
  expect_windows(divide(16, 1024 * kMiB, 1), 34, 8 * kMiB);
  expect_windows(divide(2, (24 + 8 + 60) * kMiB, 1), 15, 4 * kMiB);
  expect_windows(divide(2, (24 + 8 + 10) * kMiB, 1), 10, 1 * kMiB);
  expect_windows(divide(2, (24 + 8 + 6) * kMiB, 1), 6, 1 * kMiB);
}

TEST(Resources, ScatteredJobsGetSmallerWindows) {
  expect_windows(divide(2, 1024 * kMiB, 2), 24, 8 * kMiB);        // wants 10
  expect_windows(divide(2, 1024 * kMiB, 10), 48, 4 * kMiB);       // wants 26
  expect_windows(divide(2, 1024 * kMiB, 64), 192, 1 * kMiB);      // wants 134
  expect_windows(divide(2, 1024 * kMiB, 320), 768, 256 * kKiB);   // wants 646
  expect_windows(divide(16, 1024 * kMiB, 64), 1088, 256 * kKiB);  // wants 1058 of 272 MiB
}

TEST(Resources, PeakIgnoresTheNumberOfTargets) {
  for (const std::uint64_t mem_limit : {38 * kMiB, 92 * kMiB, 1024 * kMiB}) {
    const std::uint64_t peak = divide(2, mem_limit, 1).peak();
    for (const std::uint64_t targets : {2U, 7U, 64U, 320U, 1000000U}) {
      const MemoryPlan memory = divide(2, mem_limit, targets);
      EXPECT_EQ(memory.peak(), peak);
      EXPECT_GE(memory.window_bytes, 64 * kKiB);
      EXPECT_EQ(memory.window_bytes % 4096, 0U);
    }
  }
}

TEST(Resources, SpillRatherThanGoBelowTheSmallestWindow) {
  expect_windows(divide(2, 38 * kMiB, 320), 96, 64 * kKiB);  // wants 646
}

TEST(Resources, NameTheLeastBudget) {
  for (const std::uint64_t targets : {1U, 320U}) {
    ingot::testing::expect_error(ErrorCode::kLimit, {"--mem-limit", std::to_string(38 * kMiB)},
                                 [&] { divide(2, 38 * kMiB - 1, targets); });
  }
}

}  // namespace
}  // namespace ingot::convert
