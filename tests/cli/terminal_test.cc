#include "cli/terminal/terminal.h"

#include <array>

#include <gtest/gtest.h>

#include "cli/terminal/progress.h"
#include "cli/flags/flag_table.h"
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

}  // namespace
}  // namespace ingot::cli
