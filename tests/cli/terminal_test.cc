#include "cli/terminal.h"

#include <array>

#include <gtest/gtest.h>

#include "cli/progress.h"
#include "cli/size_option.h"
#include "cli/spelling.h"
#include "tests/support/expect_error.h"

namespace ingot::cli {
namespace {

using ingot::testing::expect_error;

TEST(Terminal, BytesHaveThreeDigitsInDecimalUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(9'994), "9.99 kB");
  EXPECT_EQ(human_bytes(9'996), "10.0 kB");
  EXPECT_EQ(human_bytes(99'960), "100 kB");
  EXPECT_EQ(human_bytes(999'499), "999 kB");
  EXPECT_EQ(human_bytes(999'500), "1.00 MB");
  EXPECT_EQ(human_bytes(688'574'839'360), "689 GB");
  EXPECT_EQ(human_bytes(~std::uint64_t{0}), "18.4 EB");
}

TEST(Terminal, SecondsGrowIntoMinutesAndHoursWithoutASixtieth) {
  EXPECT_EQ(human_seconds(0), "0.0 s");
  EXPECT_EQ(human_seconds(59.94), "59.9 s");
  EXPECT_EQ(human_seconds(59.96), "1m 00s");
  EXPECT_EQ(human_seconds(185), "3m 05s");
  EXPECT_EQ(human_seconds(3599.6), "1h 00m");
  EXPECT_EQ(human_seconds(3720), "1h 02m");
  EXPECT_EQ(human_seconds(-1), "0.0 s");
}

TEST(Terminal, CommasStandBetweenThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(Terminal, TablesAlignByCharactersAndLeaveNoTrailingSpace) {
  EXPECT_EQ(text_table({{"a", "bytes"}, {"\xc3\xa4\xc3\xb6", "1"}, {"c"}}, {false, true}),
            "  a   bytes\n  \xc3\xa4\xc3\xb6      1\n  c\n");
  EXPECT_EQ(text_table({}, {}), "");
}

TEST(Terminal, TablesAndRemarksShowNoControlBytes) {
  EXPECT_EQ(text_table({{"a\033[2Jb"}}, {}), "  a\\x1b[2Jb\n");
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
