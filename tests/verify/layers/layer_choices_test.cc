#include "verify/layers/layer_choices.h"

#include <gtest/gtest.h>

namespace ingot::testing {
namespace {

using verify::LayerChoices;
using Ids = std::vector<std::uint32_t>;

void choose_experts(LayerChoices& choices, const Ids& experts) {
  choices.taps().router(3, experts, std::vector<float>(experts.size()));
}

TEST(LayerChoices, CountTheExpertsThatBothTook) {
  LayerChoices source(2, 2), output(2, 4);
  choose_experts(source, {1, 4, 7, 0, 1, 2});
  // The first two rows of four.
  choose_experts(output, {1, 5, 7, 3, 4, 5, 1, 4, 7, 0, 1, 2});
  EXPECT_DOUBLE_EQ(source.router_overlap(output).value(), (2.0 / 3 + 0) / 2);
}

TEST(LayerChoices, CountRowsWhereBothChose) {
  LayerChoices source(3, 3), output(3, 6);
  const auto mine = source.taps(), other = output.taps();
  mine.indexer(0, 1, Ids{0, 2, 5, 9});
  mine.indexer(0, 2, Ids{1, 2});
  other.indexer(0, 0, Ids{1, 2});
  other.indexer(0, 1, Ids{2, 3, 4, 9});
  other.indexer(0, 5, Ids{1, 2});  // of the other set
  EXPECT_DOUBLE_EQ(source.indexer_overlap(output).value(), 0.5);
}

TEST(LayerChoices, SayNothingOfLayersThatHadNone) {
  const LayerChoices source(2, 2), output(2, 4);
  EXPECT_EQ(source.router_overlap(output), std::nullopt);
  EXPECT_EQ(source.indexer_overlap(output), std::nullopt);
}

}  // namespace
}  // namespace ingot::testing
