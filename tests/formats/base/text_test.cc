#include "formats/base/error.h"
#include "formats/base/fault_lines.h"
#include "formats/base/pattern.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/text/list_text.h"
#include "formats/text/text_input.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

using testing::expect_error;
using enum ErrorCode;

struct MatchCase {
  const char* pattern;
  const char* name;
  bool matches;
};

TEST(Pattern, GlobMatchesTheWholeName) {
  const MatchCase cases[] = {
      {"lm_head.weight", "lm_head.weight", true},
      {"lm_head.weight", "lm_head.weights", false},
      {"lm_head", "lm_head.weight", false},
      {"*", "", true},
      {"*", "anything.at.all", true},
      {"**", "", true},
      {"?", "", false},
      {"?", "a", true},
      {"?", "ab", false},
      {"*.weight", "model.norm.weight", true},
      {"*.weight", "model.norm.weight_scale_inv", false},
      {"model.*.experts.*", "model.layers.3.mlp.experts.17.up_proj.weight", true},
      {"model.layers.?.mlp*", "model.layers.3.mlp.gate.weight", true},
      {"model.layers.?.mlp*", "model.layers.13.mlp.gate.weight", false},
      {"*a*b*c", "xaxbxc", true},
      {"*a*b*c", "xaxcxb", false},
      {"a*a", "a", false},
      {"a*a", "aa", true},
      {"*abab", "ababab", true},
      // No other character is special.
      {"a.c", "abc", false},
      {"[ab]", "a", false},
      {"[ab]", "[ab]", true},
      {"a\\*", "a\\anything", true},
  };
  for (const MatchCase& row : cases) {
    EXPECT_EQ(Pattern(row.pattern).matches(row.name), row.matches)
        << row.pattern << " on " << row.name;
  }
}

TEST(Pattern, QuestionMarkStandsForOneCharacterOfUtf8) {
  EXPECT_TRUE(Pattern("h?").matches("h\xC3\xA9"));
  EXPECT_FALSE(Pattern("h??").matches("h\xC3\xA9"));
  EXPECT_FALSE(Pattern("*?*?").matches("\xC3\xA9"));
  EXPECT_TRUE(Pattern("re:h.$").matches("h\xC3\xA9"));
}

TEST(Pattern, GlobWithManyStarsEndsQuickly) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "a*";
  glob += "b";
  const std::string name(20'000, 'a');
  EXPECT_LT(ingot::testing::cpu_seconds([&] { EXPECT_FALSE(Pattern(glob).matches(name)); }), 5);
}

TEST(Pattern, RegexMatchesFromTheStartOfTheName) {
  const MatchCase cases[] = {
      {"re:model", "model.norm.weight", true},
      {"re:norm", "model.norm.weight", false},
      {"re:.*norm", "model.norm.weight", true},
      {"re:.*self_attn.*", "model.layers.0.self_attn.o_proj.weight", true},
      {R"(re:.*mlp\.(gate|up|gate_up|down)_proj.*)", "model.layers.0.mlp.up_proj.weight", true},
      {R"(re:.*mlp\.(gate|up|gate_up|down)_proj.*)", "model.layers.9.mlp.experts.1.up_proj.weight",
       false},
      // Each branch of an alternative is anchored, too.
      {"re:xyz|norm", "model.norm.weight", false},
      {"re:lm_head$", "lm_head.weight", false},
  };
  for (const MatchCase& row : cases) {
    EXPECT_EQ(Pattern(row.pattern).matches(row.name), row.matches)
        << row.pattern << " on " << row.name;
  }
}

TEST(Pattern, RegexThatBacktracksBeyondTheLimitIsRefused) {
  const Pattern pattern("re:(a+)+$");
  const double seconds = ingot::testing::cpu_seconds([&] {
    expect_error(kLimit, {"re:(a+)+$", "backtracks"},
                 [&] { (void)pattern.matches(std::string(200, 'a') + "b"); });
  });
  EXPECT_LT(seconds, 5);
}

TEST(Pattern, RejectsWhatDoesNotCompile) {
  for (const char* text : {"", "re:"}) {
    expect_error(kInvalidArgument, {"empty"}, [&] { Pattern{text}; });
  }
  for (const char* text : {"re:(", "re:[a", "re:*", "re:a{2,1}", "re:\\C", "re:(?<n"}) {
    expect_error(kInvalidArgument, {"is not a regular expression"}, [&] { Pattern{text}; });
  }
  for (const char* text : {"\xFF", "model.*.\xC3", "re:\xFF"}) {
    expect_error(kInvalidArgument, {"pattern cannot be used", "UTF-8"}, [&] { Pattern{text}; });
  }
  expect_error(kInvalidArgument, {"at most"},
               [] { Pattern(std::string("re:").append(100'000, 'a')); });
}

TEST(Pattern, RefusesNamesThatAreNotUtf8) {
  expect_error(kCorrupt, {"cannot be matched"}, [] { (void)Pattern("re:.*").matches("a\xFF"); });
}

TEST(Pattern, KeepsItsTextAndMoves) {
  Pattern pattern("re:model.*");
  Pattern moved = std::move(pattern);
  EXPECT_EQ(moved.text(), "re:model.*");
  EXPECT_TRUE(moved.matches("model.norm.weight"));
}

using ::testing::ElementsAre;

TEST(Printable, KeepsTextOfEveryLanguage) {
  for (const std::string_view text : {"", "model.layers.3.mlp.up_proj.weight", "a 'quoted' \\x1b",
                                      "\xc3\xa4\xe6\xb0\xb4\xf0\x9f\x8c\x8a"})
    EXPECT_EQ(printable(text), text);
}

TEST(EscapedBytes, ComeBackWhateverTheyAre) {
  EXPECT_EQ(escaped_bytes("o\xff/50%/\xc3\xa4"), "o%FF/50%25/\xc3\xa4");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& bytes :
       {all, all + all, std::string("%"), std::string("%4"), std::string()}) {
    EXPECT_TRUE(is_utf8(escaped_bytes(bytes)));
    EXPECT_EQ(unescaped_bytes(escaped_bytes(bytes)), bytes);
  }
}

TEST(Printable, EscapesWhatMovesATerminal) {
  EXPECT_EQ(printable("\033[2J\a\x7f"), "\\x1b[2J\\x07\\u007f");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J")
      << "control sequence introducer";
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "cba"),
            "\\u202e"
            "cba")
      << "right-to-left override";
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xff"), "a\\xff");
  EXPECT_EQ(printable("\xe6\xb0"), "\\xe6\\xb0") << "cut short";
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "longer than needed";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
}

TEST(Printable, APageKeepsItsLinesAlone) {
  EXPECT_EQ(printable_page("a\n\tb\r\033]52;c\a\xff"), "a\n\tb\\r\\x1b]52;c\\x07\\xff");
}

TEST(Printable, EscapingTwiceChangesNothing) {
  const std::string once = printable("\033\xff\n\xe2\x80\xae");
  EXPECT_EQ(printable(once), once);
}

TEST(Error, ShowsNamesAndQuotedTextEscaped) {
  Error error(ErrorCode::kCorrupt, "says 'a\033]0;b\nc'");
  error.in_file("dir/\033[31m.safetensors").in_tensor("x\ny\xff");
  EXPECT_STREQ(error.what(),
               "dir/\\x1b[31m.safetensors: tensor 'x\\ny\\xff': says 'a\\x1b]0;b\\nc'");
  EXPECT_EQ(error.message(), "says 'a\\x1b]0;b\\nc'");
  EXPECT_EQ(error.file(), "dir/\033[31m.safetensors") << "programs get the name as it is";
}

TEST(Error, NamesItsDirectoryOnce) {
  const auto named = [](std::string_view file) {
    Error error(ErrorCode::kCorrupt, "is cut off");
    error.in_file(file).in_directory("a/b");
    return error.file();
  };
  EXPECT_EQ(named("config.json"), "a/b/config.json");
  EXPECT_EQ(named("a/b/config.json"), "a/b/config.json");
  EXPECT_EQ(named("/a/b/config.json"), "/a/b/config.json");
  EXPECT_EQ(named(""), "a/b");
}

TEST(Error, ListsKeepTheirLines) {
  ErrorList faults;
  faults.add(Error(ErrorCode::kCorrupt, "first\n\033"));
  faults.add(Error(ErrorCode::kCorrupt, "second"));
  faults.add(Error(ErrorCode::kCorrupt, "first\n\033"));  // told already
  try {
    faults.throw_if_any();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "2 faults\n  first\\n\\x1b\n  second");
  }
}

TEST(ValidText, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(valid_text("a\n\tß山😀"), "a\n\tß山😀");
  EXPECT_EQ(valid_text("cut \xe5\xba"), "cut \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_text("\x1b[2J\xff"), "\xef\xbf\xbd[2J\xef\xbf\xbd");
  EXPECT_EQ(valid_text("\xc2\x9b"), "\xef\xbf\xbd");  // a control character of C1
  EXPECT_EQ(valid_text("\xe2\x80\xae\xe2\x81\xa6"), "\xef\xbf\xbd\xef\xbf\xbd") << "turns text";
  EXPECT_EQ(valid_text("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // half a pair
}

ListedFault fault(std::string file, std::string tensor, std::string message) {
  return {.before = "", .file = file, .tensor = tensor, .message = message, .after = ""};
}

TEST(FaultLines, KeepFewFaultsAsTheyAre) {
  EXPECT_THAT(fault_lines(std::vector{fault("a", "t", "is short"), fault("", "", "is odd")}),
              ElementsAre("a: tensor 't': is short", "is odd"));
}

TEST(FaultLines, NameTensorsOfOneFaultTogether) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 7; ++i) faults.push_back(fault("", fmt::format("x.{}.w", i), "is not here"));
  faults.push_back(fault("", "y.v", "is not here"));
  EXPECT_THAT(fault_lines(faults),
              ElementsAre("is not here: 8 tensors: 'x.0.w', 'x.1.w', 'x.2.w', 'x.3.w', 'x.4.w' and "
                          "3 more: 2 of x.*.w, 1 of y.v"));
}

TEST(FaultLines, KeepSixOfACause) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 6; ++i) faults.push_back(fault("", "t", fmt::format("is {} long", i)));
  EXPECT_EQ(fault_lines(faults).size(), 6U);
  EXPECT_EQ(fault_lines(faults).back(), "tensor 't': is 5 long");
}

TEST(FaultLines, KeepFiveLinesOfACause) {
  std::vector<ListedFault> faults = {fault("", "", "another cause")};
  for (int i = 0; i < 9; ++i) {
    faults.push_back(fault(i < 7 ? "a" : "b", fmt::format("w{}", i),
                           fmt::format("shares a scale with 'v{}.{}' of {} rows", i, i, 64 + i)));
  }
  const std::vector<std::string> lines = fault_lines(faults);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0], "another cause");
  EXPECT_EQ(lines[5], "a: tensor 'w4': shares a scale with 'v4.4' of 68 rows");
  EXPECT_EQ(lines[6], "... and 4 more like it: 2 in a, 2 in b");
}

TEST(FaultLines, SayWhereTheRestIs) {
  std::vector<ListedFault> faults;
  for (int i = 0; i < 12; ++i)
    faults.push_back(fault(fmt::format("f{}", i), "", fmt::format("ends at byte {}", i)));
  EXPECT_EQ(fault_lines(faults).back(),
            "... and 7 more like it: 1 in f5, 1 in f6, 1 in f7 and elsewhere");
}

TEST(ErrorList, GroupsForPeopleAndKeepsAllForPrograms) {
  ErrorList faults;
  for (int i = 0; i < 80; ++i) {
    Error error(ErrorCode::kUnsupported, "cannot be held");
    faults.add(error.in_tensor(fmt::format("layers.{}.w", i)));
  }
  try {
    faults.throw_if_any();
    FAIL() << "nothing was thrown";
  } catch (const FaultList& list) {
    EXPECT_EQ(list.faults().size(), 80U);
    EXPECT_EQ(list.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(list.what(),
                 "cannot be held: 80 tensors: 'layers.0.w', 'layers.1.w', 'layers.2.w', "
                 "'layers.3.w', 'layers.4.w' and 75 more: 75 of layers.*.w");
  }
}

TEST(Words, LowerCaseLeavesOtherBytes) {
  EXPECT_EQ(lower_case("FP8-Ä_z"), "fp8-Ä_z");
}

TEST(Words, NamesEndAtTheirDots) {
  EXPECT_THAT(name_words("model.layers.3"), ElementsAre("model", "layers", "3"));
  EXPECT_THAT(name_words("a..b"), ElementsAre("a", "", "b"));
  EXPECT_THAT(name_words(""), ElementsAre(""));
}

TEST(Words, NumbersAreTakenWithWhatFollows) {
  std::string_view text = "12-of-7.x";
  EXPECT_EQ(take_number(text, "-of-"), 12U);
  EXPECT_EQ(text, "7.x");
  EXPECT_EQ(take_number(text, "-"), std::nullopt);
  EXPECT_EQ(text, "7.x");
  EXPECT_EQ(take_number(text, "."), 7U);
  EXPECT_EQ(take_number(text, ""), std::nullopt);
  text = "4294967296.";
  EXPECT_EQ(take_number(text, "."), std::nullopt);
}

}  // namespace
}  // namespace ingot

namespace ingot::testing {
namespace {

TEST(ListText, NamesTheFirstAndCountsTheRest) {
  const std::vector<std::string> names = {"a", "b", "c"};
  EXPECT_EQ(list_text(names, 3), "a, b, c");
  EXPECT_EQ(list_text(names, 2), "a, b and 1 more");
  EXPECT_EQ(list_text(names, 2, "'"), "'a', 'b' and 1 more");
}

TEST(ListText, TakesNumbersAndSaysNothingOfNone) {
  EXPECT_EQ(list_text(std::vector<std::uint64_t>{4, 7}, 1), "4 and 1 more");
  EXPECT_EQ(list_text(std::vector<std::uint64_t>{}, 1, "'"), "");
}

}  // namespace
}  // namespace ingot::testing

namespace ingot {
namespace {

TEST(TextInput, NamesOfOpenFilesTellNothing) {
  for (const char* path : {"/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"})
    EXPECT_TRUE(is_nameless_input(path)) << path;
  for (const char* path : {"/dev/shm/prompts.jsonl", "a.json", "dev/stdin", "/dev/stdin.json"})
    EXPECT_FALSE(is_nameless_input(path)) << path;
}

}  // namespace
}  // namespace ingot
