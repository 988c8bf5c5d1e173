#include "formats/text/list_text.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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
