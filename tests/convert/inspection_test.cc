#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/journal.h"
#include "convert/output_directory.h"
#include "formats/check.h"
#include "tests/convert/conversion.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using ingot::testing::Conversion;
using ingot::testing::TempDir;
using ingot::testing::tiny_v32;
using ingot::testing::top_level;
using ingot::testing::tree;

TEST(Inspection, SeesTheFinishedFilesBeforeAnyHasItsFinalName) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "plain").run();
  Conversion conversion(tiny_v32(), directory / "out");
  std::map<std::string, std::string> seen;
  std::vector<std::string> published;
  conversion.execute.inspect = [&](const std::filesystem::path& staged) {
    seen = tree(staged);
    published = top_level(conversion.output);
    return Inspection{};
  };
  EXPECT_FALSE(conversion.run().refused);
  EXPECT_TRUE(seen == tree(directory / "plain"));
  EXPECT_EQ(published, std::vector<std::string>{std::string(formats::kPartialName)});
  EXPECT_TRUE(tree(directory / "out") == tree(directory / "plain"));
}

TEST(Inspection, PublishesItsReportBesideAManifestThatDoesNotListIt) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "plain").run();
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{\"version\": 1}\n"};
  };
  conversion.run();
  auto files = tree(directory / "out");
  EXPECT_EQ(files[std::string(formats::kVerifyName)], "{\"version\": 1}\n");
  files.erase(std::string(formats::kVerifyName));
  EXPECT_TRUE(files == tree(directory / "plain"));
  EXPECT_TRUE(formats::check_checkpoint(directory / "out", {}).findings.empty());
}

TEST(Inspection, ThatRefusesLeavesNothingPublishedAndEverythingToResume) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "plain").run();
  Conversion conversion(tiny_v32(), directory / "out");
  int times = 0;
  conversion.execute.inspect = [&](const std::filesystem::path&) {
    ++times;
    return Inspection{.may_publish = times > 1, .report = "{}\n"};
  };
  EXPECT_TRUE(conversion.run().refused);
  EXPECT_EQ(top_level(directory / "out"),
            std::vector<std::string>{std::string(formats::kPartialName)});

  conversion.execute.resume = true;
  const ExecuteReport again = conversion.run();
  EXPECT_FALSE(again.refused);
  EXPECT_EQ(times, 2);
  EXPECT_GT(again.items_resumed, 0U);
  EXPECT_EQ(again.items_redone, 0U);
  auto files = tree(directory / "out");
  EXPECT_EQ(files.erase(std::string(formats::kVerifyName)), 1U);
  EXPECT_TRUE(files == tree(directory / "plain"));
}

TEST(Inspection, ReplacesTheReportOfAnOlderCheckpoint) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{\"old\": true}\n"};
  };
  conversion.run();
  conversion.execute.force = true;
  conversion.execute.inspect = nullptr;
  conversion.run();
  EXPECT_FALSE(tree(directory / "out").contains(std::string(formats::kVerifyName)));
}

TEST(Inspection, ReportSurvivesAKillAtAnyRename) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "whole");
  conversion.execute.inspect = [](const std::filesystem::path&) {
    return Inspection{.report = "{}\n"};
  };
  conversion.run();
  const auto expected = tree(directory / "whole");
  for (const bool report_is_in_place : {false, true}) {
    Conversion cut(tiny_v32(), directory / (report_is_in_place ? "after" : "before"));
    ASSERT_TRUE(run_stopped(cut, 10));
    const OutputPaths paths(cut.output);
    std::filesystem::remove_all(paths.staged);
    std::filesystem::copy(directory / "whole", paths.staged,
                          std::filesystem::copy_options::recursive);
    if (report_is_in_place)
      std::filesystem::rename(paths.staged / formats::kVerifyName,
                              paths.output / formats::kVerifyName);
    Journal::append_to(paths.journal, *Journal::read(paths.journal)).add_publishing(true, true);
    cut.execute.resume = true;
    cut.run();
    EXPECT_TRUE(tree(cut.output) == expected) << report_is_in_place;
  }
}

}  // namespace
}  // namespace ingot::convert
