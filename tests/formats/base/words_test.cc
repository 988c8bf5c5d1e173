#include "formats/base/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot {
namespace {

using ::testing::ElementsAre;

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
