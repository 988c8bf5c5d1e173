#include "cli/terminal/terminal.h"

#include <atomic>
#include <cerrno>
#include <csignal>

#include <fcntl.h>

#include "cli/manual/markdown_text.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/resource_use.h"
#include "cli/terminal/standard_output.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"
#include "tests/support/test.h"

namespace ingot::cli {
namespace {

using ingot::testing::expect_error;

TEST(Terminal, RemarksShowNoControlBytes) {
  EXPECT_EQ(remark_lines("note", {"a\rb", "c\n  d"}), "note: a\\rb\nnote: c\n  d\n");
}

TEST(StandardOutput, RemembersWhyItFailed) {
  const Fd full = Fd::open_for_writing("/dev/full", O_WRONLY);
  StandardOutput output(full.get());
  std::ostream stream(&output);
  stream << std::string(1 << 17, 'x') << std::flush;
  errno = EPERM;
  stream << "more" << std::flush;
  EXPECT_FALSE(stream.good());
  EXPECT_EQ(output.failure(), ENOSPC);
}

TEST(StandardOutput, WritesPiecesOfEverySize) {
  const testing::TempDir dir;
  const Fd file = Fd::open_for_writing(dir / "out", O_WRONLY | O_CREAT);
  std::string expected;
  {
    StandardOutput output(file.get());
    std::ostream stream(&output);
    for (const std::size_t n : {1U, 70'000U, 65'535U, 1U, 3U, 65'536U, 200'000U, 2U}) {
      const std::string piece(n, static_cast<char>('a' + n % 26));
      stream << piece << '.' << std::string_view("-");
      expected += piece + ".-";
    }
    stream.flush();
    EXPECT_EQ(output.failure(), 0);
  }
  EXPECT_TRUE(read_text_file(dir / "out", 1 << 20) == expected);
}

std::string guarded(std::initializer_list<std::string_view> writes, bool is_styled = false) {
  std::stringbuf to;
  GuardedBuffer buffer(to, is_styled);
  std::ostream stream(&buffer);
  for (const std::string_view text : writes) stream << text;
  stream.flush();
  return to.str();
}

TEST(OutputGuard, PassesTextAndNoControls) {
  EXPECT_EQ(guarded({"a\n\tb ß 山😀"}), "a\n\tb ß 山😀");
  EXPECT_EQ(guarded({"\033]52;c;ZXZpbA==\a\r\x7f\xc2\x9b\xff"}),
            "\\x1b]52;c;ZXZpbA==\\x07\\r\\u007f\\u009b\\xff");
  EXPECT_EQ(guarded({"\xe2\x80\xae\xe2\x81\xa6"}), "\\u202e\\u2066");
}

TEST(OutputGuard, KnowsCharactersThatComeInPieces) {
  EXPECT_EQ(guarded({"\xe5", "\xb1", "\xb1", "\xc2", "\x9b"}), "山\\u009b");
  EXPECT_EQ(guarded({"\xf0\x9f", "a\xe5"}), "\\xf0\\x9fa\\xe5");
}

TEST(OutputGuard, LeavesJsonTheSameJson) {
  const formats::Json json = {{"a\x7f", "\xc2\x9b \xe2\x80\xae\xe2\x80\xa8 \\ \033"}};
  const std::string text = guarded({formats::json_text(json)});
  EXPECT_EQ(formats::parse_json(text, "guarded"), json);
  EXPECT_EQ(text.find_first_of("\x7f\xc2\xe2\033"), std::string::npos);
}

TEST(OutputGuard, MakesBoldOfItsMarksAlone) {
  EXPECT_EQ(guarded({kBoldOn, "a\033[1m", kBoldOff}, true), "\033[1ma\\x1b[1m\033[0m");
  EXPECT_EQ(guarded({kBoldOn}), "\\xfe");
}

TEST(OutputGuard, ColoursVerdictsAtTheStartOfLines) {
  EXPECT_EQ(guarded({"error: ", "a\nno error: b\n", "PASS: c\n"}, true),
            "\033[1;31merror:\033[0m a\nno error: b\n\033[1;32mPASS\033[0m: c\n");
  EXPECT_EQ(guarded({"warning: ß\n"}, true), "\033[1;33mwarning:\033[0m ß\n");
  EXPECT_EQ(guarded({"error: a\n"}), "error: a\n");
}

TEST(OutputGuard, WrapsLinesButNotData) {
  std::stringbuf to;
  GuardedBuffer buffer(to, true, [] { return std::size_t{20}; });
  std::ostream stream(&buffer);
  stream << "error: a line that "
         << "goes on\n  ingot convert IN OUT --to bf16\n";
  EXPECT_EQ(to.str(),
            "\033[1;31merror:\033[0m a line that\n  goes on\n  ingot convert IN OUT --to bf16\n");
  to.str("");
  EXPECT_TRUE(buffer.write_data("{\"data\": \"that stay on a line\"}\n"));
  EXPECT_EQ(to.str(), "{\"data\": \"that stay on a line\"}\n");
  // A text that a flush has shown is wrapped no more.
  to.str("");
  stream << "a question that waits: " << std::flush << "and its answer\n";
  EXPECT_EQ(to.str(), "a question that waits: and its answer\n");
}

TEST(OutputGuard, WritesRawBytesInTheirPlace) {
  std::stringbuf to;
  GuardedBuffer buffer(to, false);
  std::ostream stream(&buffer);
  stream << "a\xe5";
  EXPECT_TRUE(buffer.write_raw("\033\xe5"));
  EXPECT_EQ(to.str(), "a\\xe5\033\xe5");
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
  EXPECT_EQ(did_you_mean("list", std::array<std::string_view, 2>{"list", "lists"}), "");
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
  EXPECT_EQ(parse_size("1048576B", "--x"), 1'048'576U);
  EXPECT_EQ(parse_size("16 GB", "--x"), 16'000'000'000U);
  EXPECT_EQ(parse_size("16Gi", "--x"), std::uint64_t{16} << 30);
  EXPECT_EQ(parse_size("5GB", "--x"), 5'000'000'000U);
  EXPECT_EQ(parse_size("4gib", "--x"), std::uint64_t{4} << 30);
  EXPECT_EQ(parse_size("1.5KiB", "--x"), 1536U);
}

TEST(SizeOption, RefusesWhatIsNoSize) {
  for (const std::string text : {"", "GB", "-1", "0", "5", "5  GB", "5 G B", "5QB", "nan", "inf",
                                 "1e30", "0x10", "1e3", "1.2.3", ".5GB", "5GB5"}) {
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

TEST(ResourceUse, NamesTheNextLimits) {
  EXPECT_EQ(limits_text(reading_shares({.seconds = 10,
                                        .cpu_seconds = 25,
                                        .system_seconds = 5,
                                        .wanted_core_seconds = 26,
                                        .waited_disk_seconds = 10},
                                       4)),
            "limited by computing (50% of the threads' time), next by reading (38%), next by "
            "waiting (10%), next by other programs (2%)");
  EXPECT_EQ(limits_text({{"writing", 0.997}, {"reading", 0.003}}),
            "limited by writing (100% of the threads' time)");
  EXPECT_EQ(limits_text({}), "");
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
