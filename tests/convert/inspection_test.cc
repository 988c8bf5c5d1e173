#include <gtest/gtest.h>

#include "check/check.h"
#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "tests/convert/conversion.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;

TEST(Inspection, SeesFinishedFilesBeforePublication) {
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

TEST(Inspection, PublishesItsReportUnlistedInTheManifest) {
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
  EXPECT_TRUE(check::check_checkpoint(directory / "out", {}).findings.empty());
}

TEST(Inspection, RefusalPublishesNothingAndCanBeResumed) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "plain").run();
  Conversion conversion(tiny_v32(), directory / "out");
  int times = 0;
  conversion.execute.inspect = [&](const std::filesystem::path&) {
    ++times;
    return Inspection{.may_publish = times > 1, .report = "{}\n"};
  };
  EXPECT_TRUE(conversion.run().refused);
  expect_unpublished(directory / "out");

  conversion.execute.resume = true;
  const ExecuteReport again = conversion.run();
  EXPECT_FALSE(again.refused);
  EXPECT_EQ(times, 2);
  EXPECT_GT(again.tensors_resumed, 0U);
  EXPECT_EQ(again.tensors_redone, 0U);
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
    const OutputPaths paths = stage_finished(cut, directory / "whole");
    if (report_is_in_place)
      std::filesystem::rename(paths.staged / formats::kVerifyName,
                              paths.output / formats::kVerifyName);
    Journal::append_to(paths.journal, *Journal::read(paths.journal)).add_publishing(true, true);
    cut.execute.resume = true;
    cut.run();
    EXPECT_TRUE(tree(cut.output) == expected) << report_is_in_place;
  }
}

Conversion gated(const std::filesystem::path& output, bool passes) {
  Conversion conversion(tiny_v32(), output);
  conversion.execute.gate = "--verify weights --require 'weights.cosine>=0.999'";
  conversion.execute.inspect = [passes](const std::filesystem::path&) {
    return Inspection{.may_publish = passes};
  };
  return conversion;
}

TEST(Gate, IsNotForgottenByResume) {
  const TempDir directory;
  EXPECT_TRUE(gated(directory / "out", false).run().refused);
  Conversion plain(tiny_v32(), directory / "out");
  plain.execute.resume = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error(ErrorCode::kMismatch,
                 {"--verify weights --require 'weights.cosine>=0.999'", "--no-verify"},
                 [&] { plain.run(); });
    expect_unpublished(directory / "out");
  }
  // Nor is one that was never reached.
  Conversion stopped = gated(directory / "stopped", true);
  ASSERT_TRUE(run_stopped(stopped, 300));
  plain.output = directory / "stopped";
  expect_error(ErrorCode::kMismatch, {"--verify weights"}, [&] { plain.run(); });

  Conversion passed = gated(directory / "out", true);
  passed.execute.resume = true;
  EXPECT_FALSE(passed.run().refused);
  Conversion(tiny_v32(), directory / "plain").run();
  EXPECT_TRUE(tree(directory / "out") == tree(directory / "plain"));
}

TEST(Gate, ThatIsLeftOutStandsInTheManifest) {
  const TempDir directory;
  EXPECT_TRUE(gated(directory / "out", false).run().refused);
  Conversion open(tiny_v32(), directory / "out");
  open.execute.resume = true;
  open.execute.no_verify = true;
  open.run();
  EXPECT_EQ(formats::read_manifest(directory / "out")->unverified,
            "--verify weights --require 'weights.cosine>=0.999'");
  EXPECT_TRUE(check::check_checkpoint(directory / "out", {}).findings.empty());
  // Where nothing was asked for, there is nothing to leave out.
  expect_error(ErrorCode::kInvalidArgument, {"--no-verify"}, [&] { open.run(); });
}

TEST(Gate, LooksAtAnOutputThatWasFinishedBefore) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "out").run();
  const auto before = tree(directory / "out");
  for (const bool passes : {true, false}) {
    Conversion again = gated(directory / "out", passes);
    again.execute.resume = true;
    const ExecuteReport report = again.run();
    EXPECT_TRUE(report.already_done);
    EXPECT_EQ(report.refused, !passes);
    EXPECT_TRUE(tree(directory / "out") == before);
  }
}

TEST(Gate, LooksAtAPublicationThatWasCut) {
  const TempDir directory;
  Conversion(tiny_v32(), directory / "whole").run();
  Conversion cut(tiny_v32(), directory / "out");
  const OutputPaths paths = stage_finished(cut, directory / "whole");
  Journal::append_to(paths.journal, *Journal::read(paths.journal)).add_publishing(false, false);
  Conversion again = gated(directory / "out", false);
  again.execute.resume = true;
  const ExecuteReport report = again.run();
  EXPECT_TRUE(report.only_published);
  EXPECT_TRUE(report.refused);
  EXPECT_TRUE(tree(directory / "out") == tree(directory / "whole"));
}

}  // namespace
}  // namespace ingot::convert
