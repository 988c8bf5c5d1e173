#include "inference/chat/python_text.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {
namespace {

using ::testing::ElementsAre;

TEST(PythonText, SurvivesWritingAndReading) {
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(code_point_at(text, 0).value, c);
    ASSERT_EQ(code_point_at(text, 0).n_bytes, text.size());
    ASSERT_EQ(code_point_count(text), 1U);
    if (c % 977 == 0) {
      ASSERT_TRUE(is_utf8(text)) << static_cast<std::uint32_t>(c);
    }
  }
}

TEST(PythonText, CountsCharactersNotBytes) {
  EXPECT_EQ(code_point_count("añ世😀"), 4U);
  EXPECT_THAT(characters("añ世"), ElementsAre("a", "ñ", "世"));
}

// The list is that of CPython 3.11: [c for c in range(0x110000) if chr(c).isspace()].
TEST(PythonText, KnowsPythonsWhiteSpace) {
  std::vector<std::uint32_t> found;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_space(c)) found.push_back(static_cast<std::uint32_t>(c));
  }
  EXPECT_THAT(found, ElementsAre(9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 133, 160, 5760, 8192, 8193,
                                 8194, 8195, 8196, 8197, 8198, 8199, 8200, 8201, 8202, 8232, 8233,
                                 8239, 8287, 12288));
}

// The expected lists are those of CPython 3.11's str.splitlines.
TEST(PythonText, SplitsLinesWherePythonDoes) {
  EXPECT_THAT(split_lines("a\nb\r\nc\rd\n"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(split_lines("\n\na"), ElementsAre("", "", "a"));
  EXPECT_THAT(split_lines(""), ElementsAre());
  EXPECT_THAT(split_lines("a\vb\fc\x1c"
                          "d\x1e"
                          "e\xC2\x85"
                          "f\xE2\x80\xA8g\xE2\x80\xA9h\x1f"
                          "i"),
              ElementsAre("a", "b", "c", "d", "e", "f", "g", "h\x1fi"));
}

TEST(PythonText, ChangesCaseOfAsciiOnly) {
  EXPECT_EQ(with_case("aBc-dEf gh", Case::kUpper), "ABC-DEF GH");
  EXPECT_EQ(with_case("aBc-dEf gh", Case::kCapitalized), "Abc-def gh");
  EXPECT_EQ(with_case("it's x1y", Case::kTitle), "It'S X1Y");
  EXPECT_EQ(with_case("it's x1y (z)", Case::kWords), "It's X1y (Z)");
  EXPECT_FALSE(has_foreign_case("abc 世界 123 ١"));
  // A letter, a Roman numeral, a circled letter, a combining mark and a letter of Georgian.
  for (const char* text : {"ß", "Ⅷ", "ⓐ", "\u0345", "ა"})
    EXPECT_TRUE(has_foreign_case(text)) << text;
}

}  // namespace
}  // namespace ingot::inference
