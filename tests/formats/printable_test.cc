#include "formats/base/printable.h"

#include <gtest/gtest.h>

#include "formats/base/error.h"

namespace ingot {
namespace {

TEST(Printable, KeepsTextOfEveryLanguage) {
  for (const std::string_view text : {"", "model.layers.3.mlp.up_proj.weight", "a 'quoted' \\x1b",
                                      "\xc3\xa4\xe6\xb0\xb4\xf0\x9f\x8c\x8a"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatMovesATerminal) {
  EXPECT_EQ(printable("\033[2J\a\x7f"), "\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
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

TEST(Error, ListsKeepTheirLines) {
  ErrorList faults;
  faults.add(Error(ErrorCode::kCorrupt, "first\n\033"));
  faults.add(Error(ErrorCode::kCorrupt, "second"));
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
  EXPECT_EQ(valid_text("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // half a pair
}

}  // namespace
}  // namespace ingot
