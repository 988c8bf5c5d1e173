#include "formats/base/stop_scope.h"

#include <atomic>

#include "formats/base/parallel.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

using ingot::testing::expect_error;

TEST(StopScope, EndsALoopAtItsNextCall) {
  for (const std::size_t threads : {1U, 4U}) {
    std::atomic<bool> stops = false;
    std::atomic<std::size_t> n_calls = 0;
    const StopScope scope([&] { return stops.load(); }, "things were counted");
    expect_error(ErrorCode::kInterrupted, {"stopped while things were counted"}, [&] {
      parallel_for(1'000'000, threads, [&](std::size_t) {
        ++n_calls;
        stops = true;
      });
    });
    EXPECT_LE(n_calls, threads);
  }
}

TEST(StopScope, EndsLoopsInsideBodiesOnOtherThreads) {
  std::atomic<std::size_t> n_calls = 0;
  const StopScope scope([&] { return n_calls >= 10; }, "it ran");
  expect_error(ErrorCode::kInterrupted, {}, [&] {
    parallel_for(4, 4,
                 [&](std::size_t) { parallel_for(1'000'000, 1, [&](std::size_t) { ++n_calls; }); });
  });
  EXPECT_LE(n_calls, 10U + 4U);
}

TEST(StopScope, IsAskedOnWorkersByThemselves) {
  const StopScope scope([] { return true; }, "it ran");
  std::atomic<std::size_t> n_bodies = 0;
  expect_error(ErrorCode::kInterrupted, {}, [&] {
    run_workers(2, [&](std::size_t) {
      ++n_bodies;
      StopScope::check();
    });
  });
  EXPECT_EQ(n_bodies, 2U);
}

TEST(StopScope, AsksThoseAroundItAndNoneAfterwards) {
  {
    const StopScope outer([] { return true; }, "outer work ran");
    const StopScope inner(nullptr, "inner work ran");
    expect_error(ErrorCode::kInterrupted, {"outer"}, [] { StopScope::check(); });
  }
  StopScope::check();
  parallel_for(1, 1, [](std::size_t) {});
}

}  // namespace
}  // namespace ingot
