#include <atomic>

#include <gtest/gtest.h>

#include "convert/output/output_directory.h"
#include "tests/convert/conversion.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A side file that takes no room on the disk.
void add_side_file(const std::filesystem::path& directory, std::uint64_t n_bytes) {
  Fd::open_for_writing(directory / "large.dat", 0102).truncate(n_bytes);
}

TEST(Stop, EndsTheHashingOfSideFiles) {
  const TempDir directory;
  copy_example(directory / "in");
  add_side_file(directory / "in", 512 * kMiB);
  Conversion conversion(directory / "in", directory / "out");
  std::atomic<int> polls = 0;
  conversion.execute.stop_requested = [&] { return ++polls >= 50; };
  expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
  // 128 pieces of the side file are hashed in all, and nothing else polls that often before.
  EXPECT_EQ(polls, 50);
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
}

TEST(Stop, EndsWhatFollowsTheConversion) {
  const TempDir directory;
  copy_example(directory / "in");
  add_side_file(directory / "in", 8 * kMiB);
  Conversion whole(directory / "in", directory / "whole");
  whole.execute.sha256 = true;
  whole.run();
  for (const char* event : {"all tensors durable", "reading back"}) {
    for (const int more : {0, 3, 8}) {
      Conversion conversion(directory / "in", directory / "out");
      conversion.execute.sha256 = true;
      conversion.execute.read_back = true;
      std::atomic<bool> has_come = false;
      std::atomic<int> left = more;
      conversion.execute.log = [&](const std::string& line) {
        if (line.starts_with(event)) has_come = true;
      };
      conversion.execute.stop_requested = [&] { return has_come && --left < 0; };
      expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
      expect_unpublished(directory / "out");
      conversion.execute.stop_requested = nullptr;
      conversion.execute.resume = true;
      conversion.run();
      EXPECT_TRUE(tree(directory / "out") == tree(directory / "whole")) << event << more;
      std::filesystem::remove_all(directory / "out");
    }
  }
}

TEST(Stop, EndsTheVerificationOfAJournal) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.may_publish = false};
  };
  ASSERT_TRUE(conversion.run().refused);
  conversion.execute.inspect = nullptr;
  conversion.execute.resume = true;
  std::atomic<int> polls = 0;
  conversion.execute.stop_requested = [&] { return ++polls >= 100; };
  expect_error(ErrorCode::kInterrupted, {}, [&] { conversion.run(); });
  EXPECT_EQ(polls, 100);
}

TEST(Space, IsLookedAtBeforeAnythingIsHashed) {
  const TempDir directory;
  copy_example(directory / "in");
  add_side_file(directory / "in", 8 * kMiB * kMiB);
  Conversion conversion(directory / "in", directory / "out");
  std::atomic<int> polls = 0;
  // Where there is room for it all the same, nobody waits for the hash.
  conversion.execute.stop_requested = [&] { return ++polls >= 1000; };
  expect_error(ErrorCode::kNoSpace, {"needs"}, [&] { conversion.run(); });
  EXPECT_EQ(polls, 0);
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
}

TEST(SideFiles, BeyondAGibibyteAreAWarning) {
  const TempDir directory;
  copy_example(directory / "in");
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
