#include "cli/terminal/terminal.h"

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "cli/flags/flag_table.h"
#include "cli/manual/markdown_text.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/resource_use.h"
#include "formats/text/spelling.h"
#include "tests/support/expect_error.h"

namespace ingot::cli {
namespace {

using ingot::testing::expect_error;

TEST(Terminal, RemarksShowNoControlBytes) {
  EXPECT_EQ(remark_lines("note", {"a\rb", "c\n  d"}), "note: a\\rb\nnote: c\n  d\n");
}

TEST(Spelling, FindsTheNearestWordOrNone) {
  constexpr std::array<std::string_view, 3> kWords = {"convert", "check", "list"};
  EXPECT_EQ(nearest_word("convrt", kWords), "convert");
  EXPECT_EQ(nearest_word("covnert", kWords), "convert");
  EXPECT_EQ(nearest_word("chekc", kWords), "check");
  EXPECT_EQ(nearest_word("lst", kWords), "list");
  EXPECT_EQ(nearest_word("quantize", kWords), "");
  EXPECT_EQ(nearest_word("", kWords), "");
  EXPECT_EQ(nearest_word(std::string(1'000'000, 'c'), kWords), "");
}

TEST(Spelling, TakesABeginningAndGivesUpFarNames) {
  const std::string name = "model.layers.3.mlp.experts.17.up_proj.weight";
  const std::vector<std::string_view> names = {name};
  EXPECT_EQ(nearest_word("model.layers.3.mlp.expert.17.up_porj.weight", names), name);
  EXPECT_EQ(nearest_word("model.layers.3.self_attn.q_a_proj.weight", names), "");
  EXPECT_EQ(nearest_word(std::string(kLongestSpelling + 1, 'm'), names), "");
  const std::array<std::string_view, 3> options = {"--tokens", "--max-new-tokens", "--mem-limit"};
  EXPECT_EQ(nearest_word("--max-tokens", options), "--max-new-tokens");
  EXPECT_EQ(nearest_word("--max-new", options), "--max-new-tokens");
  EXPECT_EQ(nearest_word("--m", options), "");
  EXPECT_EQ(did_you_mean("lsit", std::array<std::string_view, 1>{"list"}), "; did you mean list?");
  EXPECT_EQ(did_you_mean("quantize", std::array<std::string_view, 1>{"list"}), "");
}

TEST(MarkdownText, FillsParagraphsListsAndTables) {
  const std::string page =
      "# Title\n\nOne *two* `th*ree` [four](x.md#y) five\nsix seven eight nine ten.\n\n"
      "* first entry that is longer than a line\n* second\n\n"
      "| a | `b\\|c` |\n|---|---|\n| one | words that do not fit into so narrow a cell |\n\n"
      "```sh\ncode --as 'it is' and never cut, however long it may be\n```\n";
  EXPECT_EQ(markdown_text(page, 40, {}),
            "Title\n\n"
            "  One two th*ree four five six seven\n  eight nine ten.\n\n"
            "  * first entry that is longer than a\n    line\n  * second\n\n"
            "  a    b|c\n"
            "  ---  ---------------------------------\n"
            "  one  words that do not fit into so\n       narrow a cell\n\n"
            "    code --as 'it is' and never cut, however long it may be\n");
}

TEST(MarkdownText, PutsBoldAroundHeadingsAlone) {
  EXPECT_EQ(markdown_text("## A **b**\ntext\n", 80, {"<", ">"}), "<A b>\n\n  text\n");
}

TEST(SizeOption, TakesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("1048576", "--x"), 1'048'576U);
  EXPECT_EQ(parse_size("5GB", "--x"), 5'000'000'000U);
  EXPECT_EQ(parse_size("4gib", "--x"), std::uint64_t{4} << 30);
  EXPECT_EQ(parse_size("1.5KiB", "--x"), 1536U);
}

TEST(SizeOption, RefusesWhatIsNoSize) {
  for (const std::string text : {"", "GB", "-1", "0", "5 GB", "5QB", "nan", "inf", "1e30", "0x10",
                                 "1e3", "1.2.3", ".5GB", "5GB5"}) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kInvalidArgument, {"--x"}, [&] { parse_size(text, "--x"); });
  }
}

TEST(Progress, RefusesAnUnknownMode) {
  expect_error(ErrorCode::kInvalidArgument, {"sometimes"},
               [] { Progress("sometimes", "converting"); });
}

TEST(Progress, NeverPrintsNothingAndAlwaysEndsItsLine) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("never", "converting");
    progress.update(1, 2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  ::testing::internal::CaptureStderr();
  {
    Progress progress("always", "converting");
    progress.update(500, 1000);
  }
  const std::string failed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(failed.find("converting  50%  500 B of 1.00 kB"), std::string::npos) << failed;
  EXPECT_EQ(failed.back(), '\n');

  ::testing::internal::CaptureStderr();
  {
    Progress progress("always", "converting");
    progress.update(0, 0);
    progress.finish();
  }
  const std::string finished = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(finished.ends_with("\r\033[K")) << finished;
}

TEST(Progress, FitsTheLineAndTellsThePhases) {
  ::testing::internal::CaptureStderr();
  Progress progress("always", "converting");
  progress.update(0, 1'000'000);
  progress.begin("reading back");
  progress.begin("reading back");
  progress.update(300, 1000);
  progress.finish();
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(shown.find("reading back  30%  300 B of 1.00 kB"), std::string::npos) << shown;
  for (std::size_t at = 0, end = 0; at < shown.size(); at = end + 1) {
    end = std::min(shown.find('\r', at), shown.size());
    EXPECT_LE(end - at, 80U + 3) << shown.substr(at, end - at);
  }
  const std::string summary = progress.summary(2);
  EXPECT_NE(summary.find("limited by"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("reading back"), summary.rfind("reading back")) << summary;
}

TEST(Progress, NeverHasNoSummary) {
  Progress progress("never", "converting");
  progress.update(1, 2);
  progress.finish();
  EXPECT_EQ(progress.summary(1), "");
}

TEST(Progress, AnswersASignalInEveryMode) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("never", "converting");
    progress.update(1, 4);
    std::raise(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "converting  25%  1 B of 4 B\n");
}

TEST(ResourceUse, NamesWhatWasScarce) {
  const auto limit = [](const ResourceUse& use) { return limit_text(use, 4); };
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 39, .disk_bytes = 1'000'000'000}),
            "cores (wanted 98% of the time)");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 4, .wanted_core_seconds = 39}),
            "cores (wanted 98% of the time)");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 4, .disk_bytes = 20'000'000'000}),
            "disk (2.00 GB/s; cores wanted 10% of the time)");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 4, .waited_disk_seconds = 9}),
            "disk (0 B/s; cores wanted 10% of the time)");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 39, .major_faults = 10'000}),
            "memory (1,000 pages/s came back from the disk)");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 9.9}), "one core");
  EXPECT_EQ(limit({.seconds = 10, .cpu_seconds = 0.1}), "-");
}

TEST(ThreadWatch, SeesAThreadThatWantsACore) {
  std::atomic<bool> stops = false;
  std::thread busy([&] {
    while (!stops) {
    }
  });
  ThreadWatch watch;
  for (int i = 0; i < 10; ++i) {
    watch.look();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  stops = true;
  busy.join();
  const double wanted = watch.take().wanted_core_seconds;
  EXPECT_GT(wanted, 0.3);
  EXPECT_EQ(watch.take().wanted_core_seconds, 0);
}

}  // namespace
}  // namespace ingot::cli
