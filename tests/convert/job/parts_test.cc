#include <atomic>
#include <barrier>

#include <fcntl.h>
#include <sys/stat.h>

#include "convert/job/claim.h"
#include "convert/job/part_journals.h"
#include "convert/job/run_files.h"
#include "convert/plan/job_part.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"

// Parts of a job: which files they write, and who has them. Their joined outputs are tested in
// tests/cli/parts.sh.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using namespace std::chrono_literals;

RunName run_on(const std::string& host) {
  return {.host = host, .boot = "boot of " + host, .pid = 7, .started = "then", .command = "ingot"};
}

// A claim is renewed and dies a hundred times as fast.
Renewal fast() {
  return {.every = 20ms, .dead = 300ms};
}

class PartClaims : public InTempDir {
 protected:
  Claim take(const std::string& host, bool resume = false, const Renewal& renewal = fast()) {
    return Claim::take_part(paths_, run_on(host), part_, resume, renewal);
  }
  // The leftovers of a run on another host that was killed: a claim that is not renewed.
  std::filesystem::path leave(std::uint32_t run) {
    std::filesystem::create_directories(paths_.claims);
    const auto path = run_file(paths_, part_, run, kClaimSuffix);
    write_text_file(path, R"({"host": "a", "boot": "boot of a", "pid": 7, "started": "then",)"
                          R"( "command": "ingot", "locked": true})");
    return path;
  }

  const OutputPaths paths_{dir_ / "out"};
  const JobPart part_{.index = 1, .n = 4};
};

TEST_F(PartClaims, AreRenewedAndRefusedToEveryHost) {
  // Long before it would be dead, however busy this machine is.
  const Renewal renewal{.every = 20ms};
  const Claim claim = take("a", false, renewal);
  expect_error(ErrorCode::kExists, {"part 1/4 is at work (process 7 on a"},
               [&] { take("b", false, renewal); });
  expect_error(ErrorCode::kExists, {"part 1/4 is at work"}, [&] { take("b", true, renewal); });
  expect_error(ErrorCode::kExists, {"part 1/4 is at work"},
               [&] { Claim::take(paths_, run_on("b"), renewal); });
  expect_error(ErrorCode::kExists, {"part 1/4 is at work"},
               [&] { Claim::take_part(paths_, run_on("b"), {.index = 0, .n = 2}, true, renewal); });
  EXPECT_NO_THROW(claim.require_held());
}

TEST_F(PartClaims, TakeNoNumberThatHasAJournal) {
  std::filesystem::create_directories(paths_.parts);
  write_text_file(run_file(paths_, part_, 1, kJournalSuffix), "finished");
  const Claim claim = take("b", true);
  EXPECT_EQ(claim.journal(), run_file(paths_, part_, 2, kJournalSuffix));
}

TEST_F(PartClaims, OfOtherPartsDoNotMind) {
  const Claim claim = take("a");
  EXPECT_NO_THROW(Claim::take_part(paths_, run_on("b"), {.index = 2, .n = 4}, false, fast()));
}

TEST_F(PartClaims, OfADeadHostAreTakenOverByResumeAlone) {
  leave(3);
  expect_error(ErrorCode::kExists, {"part 1/4"}, [&] { take("b"); });
  std::this_thread::sleep_for(400ms);
  expect_error(ErrorCode::kExists, {"was left by a run that has ended", "--resume"},
               [&] { take("b"); });
  const Claim claim = take("b", true);
  EXPECT_NE(claim.journal().string().find("1-of-4.4."), std::string::npos) << claim.journal();
}

TEST_F(PartClaims, WaitUntilADeadHostIsKnown) {
  leave(1);
  const auto begun = std::chrono::steady_clock::now();
  const Claim claim = take("b", true);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 200ms);
}

// A file time beyond now: of a file system whose clock was put back.
TEST_F(PartClaims, OfTheFutureDieLikeOthers) {
  const auto path = leave(1);
  const timespec later{.tv_sec = std::time(nullptr) + 3600, .tv_nsec = 0};
  const std::array times = {later, later};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  EXPECT_NO_THROW(take("b", true));
}

TEST_F(PartClaims, StopWaitingWhenTold) {
  leave(1);
  Renewal renewal{};
  renewal.waiting = [] { throw Error(ErrorCode::kInterrupted, "stopped"); };
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] { take("b", true, renewal); });
}

TEST_F(PartClaims, ThatWereTakenOverAreLost) {
  const Claim asleep = take("a");
  EXPECT_NO_THROW(asleep.require_held());
  // As another run makes it that found this one dead.
  const auto next = run_file(paths_, part_, 2, kClaimSuffix);
  write_text_file(next, "");
  expect_error(ErrorCode::kMismatch, {"removed or replaced"}, [&] { asleep.require_held(); });
  std::filesystem::remove(next);
  std::filesystem::remove(run_file(paths_, part_, 1, kClaimSuffix));
  expect_error(ErrorCode::kMismatch, {"removed or replaced"}, [&] { asleep.require_held(); });
}

TEST_F(PartClaims, GoToOneOfManyThatStartAtOnce) {
  for (int round = 0; round < 5; ++round) {
    constexpr int kRuns = 8;
    std::barrier start(kRuns), end(kRuns);
    std::atomic<int> taken = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < kRuns; ++i) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        std::optional<Claim> claim;
        try {
          claim.emplace(take("a"));
          ++taken;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kExists) << error.what();
        }
        end.arrive_and_wait();
      });
    }
    threads.clear();
    EXPECT_EQ(taken, 1);
  }
  EXPECT_FALSE(std::filesystem::exists(paths_.output));
}

TEST_F(PartClaims, RefuseWhileTheWholeIsAtWork) {
  const Claim whole = Claim::take(paths_, run_on("a"), fast());
  expect_error(ErrorCode::kExists, {"another run is writing here"}, [&] { take("b"); });
  expect_error(ErrorCode::kExists, {"another run is writing here"}, [&] { take("a", true); });
  EXPECT_NO_THROW(whole.require_held());
}

class DealtFiles : public ::testing::Test {
 protected:
  std::vector<std::uint32_t> dealt(std::uint32_t n, const std::vector<std::uint64_t>& sizes) {
    Recipe recipe;
    resolve(recipe, source_);
    Plan plan = plan_for(source_, recipe);
    plan.files.clear();
    for (const std::uint64_t size : sizes)
      plan.files.push_back({.members = {{.path = "f", .ranks = {}}}, .n_bytes = size});
    return dealt_parts(plan, n);
  }
  const formats::Checkpoint source_ = formats::Checkpoint::open(small_v32());
};

TEST_F(DealtFiles, GoToTheLightestPartLargestFirst) {
  using Parts = std::vector<std::uint32_t>;
  EXPECT_EQ(dealt(2, {5, 5, 5, 5}), (Parts{0, 1, 0, 1}));
  EXPECT_EQ(dealt(2, {1, 2, 3, 10}), (Parts{1, 1, 1, 0}));
  EXPECT_EQ(dealt(3, {4, 4, 9, 4}), (Parts{1, 2, 0, 1}));
  EXPECT_EQ(dealt(1, {3, 1}), (Parts{0, 0}));
}

TEST_F(DealtFiles, AreAtLeastAsManyAsParts) {
  expect_error(ErrorCode::kInvalidArgument, {"3 parts", "2 file(s)", "--max-shard-size"}, [&] {
    dealt(3, {7, 7});
  });
}

TEST(JobParts, AreReadAsWritten) {
  EXPECT_EQ(parse_job_part("3/4"), (JobPart{.index = 3, .n = 4}));
  EXPECT_EQ(text_of(parse_job_part("0/16")), "0/16");
  for (const char* text : {"", "/", "4/4", "1/0", "a/2", "1/2x", "-1/2", " 0/1", "0/4294967296"})
    expect_error(ErrorCode::kInvalidArgument, {"I/N"}, [&] { parse_job_part(text); });
}

}  // namespace
}  // namespace ingot::convert
