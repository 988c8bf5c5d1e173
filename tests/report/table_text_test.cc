#include "report/table_text.h"

#include <gtest/gtest.h>

namespace ingot {
namespace {

TEST(TableText, AlignsByCharactersWithoutTrailingSpace) {
  const Table table{.columns = {"a", number("bytes")}, .rows = {{"\xc3\xa4\xc3\xb6", "1"}, {"c"}}};
  EXPECT_EQ(table_text(table), "  a   bytes\n  \xc3\xa4\xc3\xb6      1\n  c\n");
  EXPECT_EQ(table_text(Table{}), "");
}

TEST(TableText, HasNoLineOfEmptyTitles) {
  EXPECT_EQ(table_text({.columns = {"", ""}, .rows = {{"a\033[2Jb", "c"}}}), "  a\\x1b[2Jb  c\n");
}

TEST(TableText, WordsMoveToFurtherLines) {
  const Table table{.columns = {"name", number("n"), "meaning"},
                    .rows = {{"a", "1", "words that go on and on"}, {"b", "22", "few"}}};
  EXPECT_EQ(table_text(table, 26),
            "  name   n  meaning\n"
            "  a      1  words that go\n"
            "            on and on\n"
            "  b     22  few\n");
  EXPECT_EQ(table_text(table, 200), table_text(table));
}

TEST(TableText, BreaksAWordThatFillsALine) {
  const Table table{.columns = {""}, .rows = {{"model.layers.3.mlp.experts \xc3\xa4\xc3\xb6"}}};
  EXPECT_EQ(table_text(table, 18), "  model.layers.3.\n  mlp.experts \xc3\xa4\xc3\xb6\n");
}

TEST(TableText, TooManyTextsBecomeRecords) {
  const Table table{.columns = {"engine", "scheme", "reason"},
                    .rows = {{"vLLM-Ascend", "int8-channel", ""},
                             {"transformers", "mxfp4-block", "has no kernel for it"}}};
  EXPECT_EQ(table_text(table, 30),
            "  engine  vLLM-Ascend\n  scheme  int8-channel\n\n"
            "  engine  transformers\n  scheme  mxfp4-block\n  reason  has no kernel for it\n");
}

TEST(TableText, NumbersAreNeverBroken) {
  const Table table{.columns = {number("bytes")}, .rows = {{"688,574,839,360"}}};
  EXPECT_EQ(table_text(table, 8), table_text(table));
}

}  // namespace
}  // namespace ingot
