#include "convert/job/claim.h"

#include <atomic>
#include <barrier>

#include "convert/job/run_files.h"
#include "convert/output/output_directory.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

const RunName kFirst{.host = "here",
                     .boot = "b1",
                     .pid = 123,
                     .started = "2026-01-02 03:04:05 UTC",
                     .command = "ingot convert m out"};
const RunName kSecond{
    .host = "here", .boot = "b1", .pid = 456, .started = "later", .command = "ingot merge"};

const RunName kElsewhere{
    .host = "there", .boot = "b2", .pid = 456, .started = "later", .command = "ingot join"};
const Renewal kSoonDead{.dead = std::chrono::milliseconds(20)};

// The claim of the first run of a whole.
std::filesystem::path first_claim(const OutputPaths& paths) {
  return run_file(paths, std::nullopt, 1, kClaimSuffix);
}

void write_claim(const OutputPaths& paths, const std::string& text) {
  std::filesystem::create_directories(paths.claims);
  write_text_file(first_claim(paths), text);
}

// The leftovers of a run that was killed: a claim without a lock.
void leave_claim(const OutputPaths& paths, const RunName& run) {
  std::optional<std::string> text;
  {
    const Claim claim = Claim::take(paths, run);
    text = read_text_file(first_claim(paths), 1000);
  }
  write_claim(paths, *text);
}

class Claims : public InTempDir {
 protected:
  const OutputPaths paths_{dir_ / "out"};
};

TEST_F(Claims, RefusesASecondRunNamingTheFirst) {
  const Claim claim = Claim::take(paths_, kFirst);
  EXPECT_TRUE(claim.is_locked());
  EXPECT_NO_THROW(claim.require_held());
  expect_error(ErrorCode::kExists,
               {(dir_ / "out").string(), "process 123 on here", "started 2026-01-02 03:04:05 UTC",
                "ingot convert m out"},
               [&] { Claim::take(paths_, kSecond); });
  EXPECT_NO_THROW(claim.require_held());
}

TEST_F(Claims, LeavesNothingBehind) {
  { const Claim claim = Claim::take(OutputPaths(dir_ / "out"), kFirst); }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
  std::filesystem::create_directory(dir_ / "mine");
  { const Claim claim = Claim::take(OutputPaths(dir_ / "mine"), kFirst); }
  EXPECT_TRUE(top_level(dir_ / "mine").empty());
  EXPECT_TRUE(std::filesystem::exists(dir_ / "mine"));
}

TEST_F(Claims, TakesOverThatOfADeadRun) {
  leave_claim(paths_, kFirst);
  EXPECT_NO_THROW(Claim::take(paths_, kSecond));
  // After a restart of the host its boot id is another.
  RunName restarted = kSecond;
  restarted.boot = "b2";
  leave_claim(paths_, kFirst);
  EXPECT_NO_THROW(Claim::take(paths_, restarted, kSoonDead));
  write_claim(paths_, "{\"host\": \"cut by a cr");
  EXPECT_NO_THROW(Claim::take(paths_, kSecond));
}

TEST_F(Claims, ReplacesAnotherHostsThatNobodyRenews) {
  leave_claim(paths_, kFirst);
  const Claim claim = Claim::take(paths_, kElsewhere, kSoonDead);
  // A run that was only asleep sees that its file has gone.
  EXPECT_FALSE(std::filesystem::exists(first_claim(paths_)));
  EXPECT_NO_THROW(claim.require_held());
}

TEST_F(Claims, LeavesAnotherHostsThatIsRenewed) {
  leave_claim(paths_, kFirst);
  Renewal renewal{.dead = std::chrono::hours(1)};
  renewal.waiting = [&] {
    const auto path = first_claim(paths_);
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  };
  expect_error(ErrorCode::kExists, {"process 123 on here", "wait for it"},
               [&] { Claim::take(paths_, kElsewhere, renewal); });
  expect_error(ErrorCode::kExists, {"process 123 on here", "wait for it"}, [&] {
    Claim::take_part(paths_, kElsewhere, {0, 2}, false, renewal);
  });
  EXPECT_TRUE(std::filesystem::exists(first_claim(paths_)));
}

TEST_F(Claims, LetPartsFollowADeadJoinElsewhere) {
  leave_claim(paths_, kFirst);
  const Claim part = Claim::take_part(paths_, kElsewhere, {0, 2}, false, kSoonDead);
  EXPECT_FALSE(std::filesystem::exists(first_claim(paths_)));
  EXPECT_NO_THROW(part.require_held());
}

TEST_F(Claims, AreFilesThatCanBeRead) {
  std::filesystem::create_directories(first_claim(paths_));
  expect_error(ErrorCode::kInvalidArgument, {first_claim(paths_).string(), "is not a regular file"},
               [&] {
                 Claim::take_part(paths_, kElsewhere, {0, 2}, false, kSoonDead);
               });
}

TEST_F(Claims, NoticesThatItWasTakenAway) {
  const Claim first = Claim::take(paths_, kFirst);
  std::filesystem::remove(first_claim(paths_));
  expect_error(ErrorCode::kMismatch, {"removed or replaced"}, [&] { first.require_held(); });
  const Claim second = Claim::take(paths_, kSecond);
  expect_error(ErrorCode::kMismatch, {"removed or replaced"}, [&] { first.require_held(); });
  EXPECT_NO_THROW(second.require_held());
}

TEST_F(Claims, GoesToOneOfManyConcurrentRuns) {
  constexpr int kRuns = 8;
  for (int round = 0; round < 20; ++round) {
    std::barrier all(kRuns);
    std::atomic<int> winners = 0, refused = 0;
    std::vector<std::jthread> threads;
    for (int run = 0; run < kRuns; ++run) {
      threads.emplace_back([&] {
        std::optional<Claim> claim;
        all.arrive_and_wait();
        try {
          claim.emplace(Claim::take(paths_, kFirst));
          ++winners;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kExists);
          EXPECT_NE(std::string(error.what()).find("process 123"), std::string::npos)
              << error.what();
          ++refused;
        }
        // The winner holds it until all have asked.
        all.arrive_and_wait();
      });
    }
    threads.clear();
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(refused, kRuns - 1);
    EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
  }
}

using ClaimedOutput = InTempDir;
using Stop = InTempDir;

TEST_F(ClaimedOutput, RefusesOtherRunsAndPublishesOwnBytes) {
  Conversion(small_v32(), dir_ / "whole").run();
  Conversion first(small_v32(), dir_ / "out");
  first.execute.run = kFirst;
  int refused = 0;
  first.execute.inspect = [&](const std::filesystem::path&) {
    for (const bool resume : {false, true}) {
      for (const bool force : {false, true}) {
        Conversion other(small_v32(), dir_ / "out");
        other.recipe.mtp = MtpPolicy::kDrop;
        other.execute.resume = resume;
        other.execute.force = force;
        expect_error(ErrorCode::kExists, {"another run is writing here", "process 123 on here"},
                     [&] { other.run(); });
        ++refused;
      }
    }
    return Inspection{};
  };
  first.run();
  EXPECT_EQ(refused, 4);
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
}

TEST_F(ClaimedOutput, IsNotPublishedAfterTheClaimIsLost) {
  Conversion first(small_v32(), dir_ / "out");
  first.execute.inspect = [&](const std::filesystem::path&) {
    // As a user may remove it by hand.
    std::filesystem::remove_all(OutputPaths(dir_ / "out").partial);
    Conversion other(small_v32(), dir_ / "out");
    EXPECT_TRUE(run_stopped(other, 100));
    return Inspection{};
  };
  expect_error(ErrorCode::kMismatch, {}, [&] { first.run(); });
  expect_unpublished(dir_ / "out");
}

TEST_F(ClaimedOutput, IsNotPublishedWithAReplacedFile) {
  Conversion conversion(small_v32(), dir_ / "out");
  std::string replaced;
  conversion.execute.inspect = [&](const std::filesystem::path& staged) {
    const auto file = staged / replaced;
    std::filesystem::copy_file(file, staged / "copy");
    std::filesystem::rename(staged / "copy", file);
    return Inspection{};
  };
  for (const char* name : {"model-00001-of-00002.safetensors", "config.json"}) {
    replaced = name;
    expect_error(ErrorCode::kMismatch, {name, "not the file that this run has written"},
                 [&] { conversion.run(); });
    expect_unpublished(dir_ / "out");
    conversion.execute.force = true;
  }
}

TEST_F(ClaimedOutput, IsNotReplacedAfterAKilledForcedRun) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.run();
  const auto before = tree(dir_ / "out");
  // Killed before its journal was written.
  std::filesystem::create_directories(OutputPaths(dir_ / "out").staged);
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.execute.resume = true;
  expect_error(ErrorCode::kMismatch, {}, [&] { conversion.run(); });
  EXPECT_TRUE(tree(dir_ / "out") == before);
}

TEST_F(ClaimedOutput, RemovedAtAnyPointEndsTheRun) {
  for (const int polls : {1, 40, 100}) {
    const TempDir directory;
    Conversion conversion(small_v32(), directory / "out");
    std::atomic<int> left = polls;
    conversion.stop_requested = [&] {
      if (--left == 0) std::filesystem::remove_all(directory / "out");
      return false;
    };
    EXPECT_THROW(conversion.run(), std::exception) << polls;
    EXPECT_FALSE(std::filesystem::exists(directory / "out" / formats::kManifestName));
  }
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A side file that takes no room on the disk.
void add_side_file(const std::filesystem::path& directory, std::uint64_t n_bytes) {
  Fd::open_for_writing(directory / "large.dat", 0102).truncate(n_bytes);
}

TEST_F(Stop, EndsTheHashingOfSideFiles) {
  copy_small(dir_ / "in");
  add_side_file(dir_ / "in", 512 * kMiB);
  Conversion conversion(dir_ / "in", dir_ / "out");
  std::atomic<int> polls = 0;
  conversion.stop_requested = [&] { return ++polls >= 50; };
  expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
  // 128 pieces of the side file are hashed in all, and nothing else polls that often before.
  EXPECT_EQ(polls, 50);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
}

TEST_F(Stop, EndsWhatFollowsTheConversion) {
  std::filesystem::copy(synth_model(), dir_ / "in", std::filesystem::copy_options::recursive);
  add_side_file(dir_ / "in", 8 * kMiB);
  Conversion whole(dir_ / "in", dir_ / "whole");
  whole.execute.sha256 = true;
  whole.run();
  for (const char* event : {"all tensors durable", "reading back"}) {
    for (const int more : {0, 3, 8}) {
      Conversion conversion(dir_ / "in", dir_ / "out");
      conversion.execute.sha256 = true;
      conversion.execute.read_back = true;
      std::atomic<bool> has_come = false;
      std::atomic<int> left = more;
      conversion.execute.log = [&](const std::string& line) {
        if (line.starts_with(event)) has_come = true;
      };
      conversion.stop_requested = [&] { return has_come && --left < 0; };
      expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
      expect_unpublished(dir_ / "out");
      conversion.stop_requested = nullptr;
      conversion.execute.resume = true;
      conversion.run();
      EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole")) << event << more;
      std::filesystem::remove_all(dir_ / "out");
    }
  }
}

TEST_F(Stop, EndsTheVerificationOfAJournal) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.may_publish = false};
  };
  ASSERT_TRUE(conversion.run().refused);
  conversion.execute.inspect = nullptr;
  conversion.execute.resume = true;
  std::atomic<int> polls = 0;
  conversion.stop_requested = [&] { return ++polls >= 100; };
  expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
  EXPECT_EQ(polls, 100);
}

TEST(Space, IsLookedAtBeforeAnythingIsHashed) {
  const TempDir directory;
  copy_small(directory / "in");
  add_side_file(directory / "in", 8 * kMiB * kMiB);
  Conversion conversion(directory / "in", directory / "out");
  std::atomic<int> polls = 0;
  // Where there is room all the same, no run waits for the hash.
  conversion.stop_requested = [&] { return ++polls >= 1000; };
  expect_error(ErrorCode::kNoSpace, {"needs"}, [&] { conversion.run(); });
  EXPECT_EQ(polls, 0);
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
}

TEST(SideFiles, BeyondAGibibyteAreAWarning) {
  const TempDir directory;
  copy_small(directory / "in");
  const auto warnings = [&] {
    const auto source = formats::Checkpoint::open(directory / "in");
    Recipe recipe;
    resolve(recipe, source);
    return plan_for(source, recipe).warnings;
  };
  const std::size_t before = warnings().size();
  add_side_file(directory / "in", 1025 * kMiB);
  ASSERT_EQ(warnings().size(), before + 1);
  EXPECT_NE(warnings().back().find("large.dat"), std::string::npos);
}

}  // namespace
}  // namespace ingot::convert
