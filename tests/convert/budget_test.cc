#include "convert/budget.h"

#include <cmath>
#include <limits>
#include <random>

#include "formats/base/error.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::SchemeId;

const std::vector<SchemeId> kTwo = {SchemeId::kNvfp4, SchemeId::kFp8Block};

BudgetGroup group(std::uint32_t layer, std::uint64_t elements, double narrow_loss) {
  return {.layer = layer,
          .roles = {"o-proj"},
          .elements = elements,
          .bits = {elements * 9 / 2, elements * 8},
          .losses = {narrow_loss, narrow_loss / 64}};
}

double average(const Budget& budget, const FixedLinears& fixed) {
  std::uint64_t bits = fixed.bits, elements = fixed.elements;
  for (const BudgetGroup& one : budget.groups) {
    bits += one.bits[one.chosen];
    elements += one.elements;
  }
  return static_cast<double>(bits) / static_cast<double>(elements);
}

TEST(Budget, LosesNoMoreThanAnyOtherChoiceOfItsSize) {
  std::mt19937 draw(7);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<BudgetGroup> groups;
    for (std::uint32_t i = 0; i < 10; ++i)
      groups.push_back(group(i, 64 * (1 + draw() % 40), static_cast<double>(1 + draw() % 1000)));
    const FixedLinears fixed = {.bits = 8 * 640, .elements = 640};
    const double wanted = 5 + static_cast<double>(draw() % 20) / 10;
    const Budget budget = choose_within(groups, kTwo, fixed, wanted);
    EXPECT_NEAR(average(budget, fixed), budget.bits, 1e-12);
    EXPECT_LE(std::abs(budget.bits - wanted), 0.05);
    // Every choice within the same bounds.
    double best = std::numeric_limits<double>::infinity();
    for (unsigned choice = 0; choice < 1U << groups.size(); ++choice) {
      Budget other{.groups = groups};
      double loss = 0;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        other.groups[i].chosen = choice >> i & 1U;
        loss += groups[i].losses[other.groups[i].chosen];
      }
      const double bits = average(other, fixed);
      // Half a percent less than the bound: the search has steps of 1/2048 bit.
      if (bits >= wanted - 0.05 && bits <= wanted - 0.005) best = std::min(best, loss);
    }
    if (std::isfinite(best)) {
      EXPECT_LE(budget.loss, best * (1 + 1e-12));
    }
  }
}

TEST(Budget, NamesTheRangeOfWhatCannotBeHad) {
  const std::vector<BudgetGroup> groups = {group(0, 1000, 1), group(1, 1000, 2)};
  for (const double wanted : {4.3, 8.2}) {
    expect_error(ErrorCode::kInvalidArgument, {"from 4.500 to 8.000"},
                 [&] { choose_within(groups, kTwo, {}, wanted); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"the nearest are 4.500 and 6.250"},
               [&] { choose_within(groups, kTwo, {}, 5); });
  expect_error(ErrorCode::kInvalidArgument, {"no linear layer"},
               [&] { choose_within({}, kTwo, {}, 5); });
  EXPECT_EQ(choose_within(groups, kTwo, {}, 6.25).groups[1].chosen, 1U) << "which loses more";
}

TEST(Budget, WritesARecipeThatChoosesTheSame) {
  std::vector<BudgetGroup> groups;
  for (std::uint32_t layer = 0; layer < 6; ++layer)
    groups.push_back(group(layer, 1000, layer == 4 ? 1 : 10));
  const Budget budget = choose_within(groups, kTwo, {}, 7.42);
  EXPECT_THAT(budget.recipe, ::testing::HasSubstr("match: layers:0-3,5 & role:o-proj"));
  const Recipe recipe = parse_recipe(budget.recipe, "budget");
  EXPECT_EQ(recipe.to, formats::SchemeId::kNvfp4);
  ASSERT_EQ(recipe.rules.size(), 1U);
  EXPECT_EQ(recipe.rules[0].scheme, formats::SchemeId::kFp8Block);
}

// All choices of six groups among four schemes, of which some groups lack one.
TEST(Budget, ChoosesAmongSchemesThatAGroupCanHave) {
  const std::vector<SchemeId> schemes = {SchemeId::kNvfp4, SchemeId::kFp8Block, SchemeId::kBf16,
                                         SchemeId::kInt4Group};
  std::mt19937 draw(11);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<BudgetGroup> groups;
    for (std::uint32_t i = 0; i < 6; ++i) {
      groups.push_back(group(i, 64 * (1 + draw() % 40), static_cast<double>(1 + draw() % 1000)));
      BudgetGroup& one = groups.back();
      one.bits.insert(one.bits.end(), {one.elements * 16, one.elements * 33 / 8});
      one.losses.insert(one.losses.end(), {0, one.losses[0] * 2});
      if (draw() % 3 == 0) one.losses[3] = std::numeric_limits<double>::infinity();
    }
    const double wanted = 5 + static_cast<double>(draw() % 60) / 10;
    const Budget budget = choose_within(groups, schemes, {}, wanted);
    double best = std::numeric_limits<double>::infinity();
    for (unsigned choice = 0; choice < 1U << 12; ++choice) {
      Budget other{.groups = groups};
      double loss = 0;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        other.groups[i].chosen = choice >> 2 * i & 3U;
        loss += groups[i].losses[other.groups[i].chosen];
      }
      const double bits = average(other, {});
      if (bits >= wanted - 0.05 && bits <= wanted - 0.005) best = std::min(best, loss);
    }
    EXPECT_LE(std::abs(average(budget, {}) - wanted), 0.05 + 1e-12);
    if (std::isfinite(best)) {
      EXPECT_LE(budget.loss, best * (1 + 1e-12));
    }
  }
}

TEST(Budget, TakesAListOfSchemes) {
  EXPECT_THAT(budget_schemes(""), ::testing::ElementsAreArray(kBudgetSchemes));
  EXPECT_THAT(
      budget_schemes("int4,int8,bf16"),
      ::testing::ElementsAre(SchemeId::kInt4Group, SchemeId::kInt8Channel, SchemeId::kBf16));
  for (const auto& [words, fact] :
       {std::pair{"nvfp4,nvfp4", "twice"}, std::pair{"bf16,nvfp4", "begins with bf16"},
        std::pair{"nvfp4,mxfp8", "does not choose mxfp8"}, std::pair{"nvfp4,", "no scheme"}})
    expect_error(ErrorCode::kInvalidArgument, {"--bits-from", fact},
                 [&] { budget_schemes(words); });
}

}  // namespace
}  // namespace ingot::convert
