#include "formats/container/sections.h"

#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using ::testing::ElementsAre;
using Lengths = std::vector<std::uint64_t>;

TEST(Sections, AreTheSameForAWeightAndItsScales) {
  const auto of_weight = Sections::of_lengths(Lengths{256, 256, 512});
  const auto of_scales = Sections::of_lengths(Lengths{2, 2, 4});
  ASSERT_TRUE(of_weight.has_value());
  EXPECT_EQ(of_weight, of_scales);
  EXPECT_THAT(of_weight->shares(), ElementsAre(1, 1, 2));
  EXPECT_EQ(of_weight->length_of(2, 8), 4U);
  EXPECT_EQ(of_weight->step(1024), 256U);
}

TEST(Sections, OfEqualLengthsAreANumber) {
  EXPECT_EQ(Sections::of_lengths(Lengths{96, 96}), Sections::equal(2));
  EXPECT_EQ(Sections::of_lengths(Lengths{96}), Sections());
  EXPECT_EQ(Sections::equal(1), Sections());
  EXPECT_EQ(sections_json(Sections::equal(2)), 2);
  EXPECT_EQ(sections_json(*Sections::of_lengths(Lengths{64, 64, 16, 16, 1})),
            Json({64, 64, 16, 16, 1}));
}

TEST(Sections, DivideWhereEverySliceOfEachIsWhole) {
  const Sections sections = *Sections::of_lengths(Lengths{4, 4, 8});
  EXPECT_TRUE(sections.divide(16));
  EXPECT_TRUE(sections.divide(16, 4));
  EXPECT_FALSE(sections.divide(16, 8)) << "half an element of the first";
  EXPECT_TRUE(sections.divide(32, 2, 4));
  EXPECT_FALSE(sections.divide(32, 2, 8));
  EXPECT_FALSE(sections.divide(18));
  EXPECT_TRUE(Sections().divide(12, 3, 4));
  EXPECT_TRUE(Sections().divide(0, 3, 4));
}

TEST(Sections, RefuseWhatIsNoLength) {
  EXPECT_EQ(Sections::of_lengths({}), std::nullopt);
  EXPECT_EQ(Sections::of_lengths(Lengths{4, 0}), std::nullopt);
  EXPECT_EQ(Sections::of_lengths(Lengths(65, 1)), std::nullopt);
  EXPECT_EQ(Sections::of_lengths(Lengths{1, std::uint64_t{1} << 32}), std::nullopt);
}

TEST(Sections, ComeBackFromTheirJson) {
  for (const Lengths& lengths : {Lengths{7}, {3, 3, 3}, {1, 2}, Lengths(64, 5)}) {
    const Sections sections = *Sections::of_lengths(lengths);
    EXPECT_EQ(parse_sections(sections_json(sections), "r"), sections);
  }
  for (const Json& json : {Json(0), Json(65), Json(-1), Json("2"), Json(nullptr), Json::array(),
                           Json({1, 0}), Json({1, "2"}), Json::object()}) {
    testing::expect_error(ErrorCode::kCorrupt, {"'sections' is neither"},
                          [&] { static_cast<void>(parse_sections(json, "r")); });
  }
}

}  // namespace
}  // namespace ingot::formats
