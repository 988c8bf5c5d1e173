#include "shard/cut/expert_map.h"

#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using ingot::testing::expect_error;
using namespace ::testing;

/// Four experts over two ranks, layers 1 and 2.
const ExpertMapLimits kFour = {.n_experts = 4, .ep = 2, .layers = {{1, 2}}};

ExpertMap parse(std::string_view text, const ExpertMapLimits& limits = kFour) {
  return ExpertMap::parse(text, "map.json", limits);
}

void expect_refused(std::initializer_list<std::string> fragments, std::string_view text,
                    const ExpertMapLimits& limits = kFour) {
  expect_error(ErrorCode::kInvalidArgument, fragments, [&] { parse(text, limits); });
}

TEST(ExpertMap, DealsContiguousBlocksByDefault) {
  const ExpertMap map = ExpertMap::contiguous(8, 4);
  EXPECT_EQ(map.ep(), 4U);
  EXPECT_TRUE(map.is_uniform());
  EXPECT_FALSE(map.places_shared());
  EXPECT_THAT(map.experts_of(5, 0), ElementsAre(0, 1));
  EXPECT_THAT(map.experts_of(5, 3), ElementsAre(6, 7));
  EXPECT_THAT(map.slots_of(5, 2), ElementsAre(4, 5));
  EXPECT_THAT(map.ranks_of(5, 5), ElementsAre(2));
  EXPECT_TRUE(map.to_json().is_null());
}

TEST(ExpertMap, NeedsNoExpertsForOneRank) {
  const ExpertMap map = ExpertMap::contiguous(0, 1);
  EXPECT_THAT(map.experts_of(0, 0), IsEmpty());
}

TEST(ExpertMap, RefusesRanksThatDoNotDivideTheExperts) {
  expect_error(ErrorCode::kInvalidArgument, {"256 experts", "--ep 3", "--expert-map"},
               [] { ExpertMap::contiguous(256, 3); });
  expect_error(ErrorCode::kInvalidArgument, {"no experts", "--ep 2"},
               [] { ExpertMap::contiguous(0, 2); });
}

TEST(ExpertMap, ReadsAListOfSlots) {
  for (const char* text : {"[3, 1, 0, 2]", R"({"slots": [3, 1, 0, 2]})"}) {
    const ExpertMap map = parse(text);
    EXPECT_TRUE(map.is_uniform());
    EXPECT_THAT(map.slots_of(1, 0), ElementsAre(3, 1));
    EXPECT_THAT(map.experts_of(1, 0), ElementsAre(1, 3));
    EXPECT_THAT(map.experts_of(2, 1), ElementsAre(0, 2));
    EXPECT_THAT(map.ranks_of(1, 3), ElementsAre(0));
    EXPECT_FALSE(map.to_json().is_null());
  }
}

TEST(ExpertMap, KnowsContiguousBlocksWhenItReadsThem) {
  EXPECT_TRUE(parse("[0, 1, 2, 3]").to_json().is_null());
}

TEST(ExpertMap, ReadsAListPerLayer) {
  const ExpertMap map = parse(R"({"layers": {"2": [0, 1, 2, 3], "1": [2, 3, 0, 1]}})");
  EXPECT_FALSE(map.is_uniform());
  EXPECT_THAT(map.experts_of(1, 0), ElementsAre(2, 3));
  EXPECT_THAT(map.experts_of(2, 0), ElementsAre(0, 1));
  EXPECT_THAT(map.ranks_of(1, 0), ElementsAre(1));
  EXPECT_THAT(map.ranks_of(2, 0), ElementsAre(0));
  EXPECT_THAT(map.experts_of(0, 0), IsEmpty()) << "a dense layer";
}

TEST(ExpertMap, AsksForNoListBetweenLayersWithExperts) {
  ExpertMapLimits limits = kFour;
  limits.layers = {{1, 3}};
  const ExpertMap map = parse(R"({"layers": {"1": [2, 3, 0, 1], "3": [0, 1, 2, 3]}})", limits);
  EXPECT_THAT(map.experts_of(2, 0), IsEmpty());
  EXPECT_THAT(map.experts_of(3, 0), ElementsAre(0, 1));
  expect_refused({"layer '2'", "1, 3"}, R"({"layers": {"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}})",
                 limits);
}

TEST(ExpertMap, TakesARecordedMapAsItIs) {
  ExpertMapLimits limits = kFour;
  limits.layers.reset();
  EXPECT_THAT(parse(R"({"layers": {"7": [2, 3, 0, 1]}})", limits).experts_of(7, 0),
              ElementsAre(2, 3));
}

TEST(ExpertMap, StoresAnExpertOncePerRank) {
  ExpertMapLimits limits = kFour;
  limits.allow_redundant = true;
  const ExpertMap map = parse("[0, 1, 0, 3, 2, 1]", limits);
  EXPECT_THAT(map.slots_of(1, 0), ElementsAre(0, 1, 0));
  EXPECT_THAT(map.experts_of(1, 0), ElementsAre(0, 1));
  EXPECT_THAT(map.experts_of(1, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(map.ranks_of(1, 1), ElementsAre(0, 1));
  EXPECT_THAT(map.ranks_of(1, 2), ElementsAre(1));
}

TEST(ExpertMap, PlacesTheSharedExpertInASlot) {
  ExpertMapLimits limits = kFour;
  limits.has_shared = true;
  limits.allow_redundant = true;
  const ExpertMap map = parse("[0, 1, 4, 2, 3, 4]", limits);
  EXPECT_TRUE(map.places_shared());
  EXPECT_THAT(map.ranks_of(1, 4), ElementsAre(0, 1));
  EXPECT_FALSE(parse("[0, 1, 2, 3]", limits).places_shared());
}

TEST(ExpertMap, DealsUnevenlyOnRequest) {
  ExpertMapLimits limits = kFour;
  limits.allow_uneven = true;
  const ExpertMap told = parse(R"({"slots": [0, 1, 2, 3], "slots_per_rank": [1, 3]})", limits);
  EXPECT_THAT(told.experts_of(1, 0), ElementsAre(0));
  EXPECT_THAT(told.experts_of(1, 1), ElementsAre(1, 2, 3));
  limits.ep = 3;
  const ExpertMap dealt = parse("[0, 1, 2, 3]", limits);
  EXPECT_THAT(dealt.experts_of(1, 0), ElementsAre(0, 1));
  EXPECT_THAT(dealt.experts_of(1, 1), ElementsAre(2));
  EXPECT_THAT(dealt.experts_of(1, 2), ElementsAre(3));
}

TEST(ExpertMap, ReadsItsOwnJson) {
  ExpertMapLimits limits = kFour;
  limits.has_shared = limits.allow_redundant = limits.allow_uneven = true;
  for (const char* text :
       {"[3, 1, 0, 2]", R"({"slots": [0, 4, 1, 2, 3, 0], "slots_per_rank": [1, 5]})",
        R"({"layers": {"1": [0, 1, 2, 3, 3], "2": [3, 2, 1, 0, 0]}})"}) {
    const ExpertMap map = parse(text, limits);
    const ExpertMap again = parse(map.to_json()->dump(), limits);
    EXPECT_EQ(*again.to_json(), *map.to_json());
    EXPECT_EQ(again.places_shared(), map.places_shared());
    for (std::uint32_t layer = 1; layer < 3; ++layer) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(std::ranges::equal(again.slots_of(layer, rank), map.slots_of(layer, rank)));
      }
    }
  }
}

TEST(ExpertMap, RefusesAMissingExpert) {
  expect_refused({"map.json", "expert 2 is in no slot"}, "[0, 1, 1, 3]");
  expect_refused({"layer 2", "expert 0 is in no slot"},
                 R"({"layers": {"1": [0, 1, 2, 3], "2": [1, 2, 3, 3]}})");
}

TEST(ExpertMap, RefusesARepeatedExpertUnasked) {
  expect_refused({"expert 3 is in 3 slots", "--redundant-experts"}, "[0, 1, 2, 3, 3, 3]");
}

TEST(ExpertMap, RefusesExpertsOutOfRange) {
  expect_refused({"slot 3 holds 4", "0 to 3"}, "[0, 1, 2, 4]");
  expect_refused({"slot 0 holds -1"}, "[-1, 1, 2, 3]");
  expect_refused({"slot 1 holds 1.5"}, "[0, 1.5, 2, 3]");
  expect_refused({"slot 2 holds 18446744073709551615"}, "[0, 1, 18446744073709551615, 3]");
  ExpertMapLimits shared = kFour;
  shared.has_shared = true;
  expect_refused({"slot 3 holds 5", "4 is the shared one"}, "[0, 1, 2, 5]", shared);
}

TEST(ExpertMap, RefusesUnevenRanksUnasked) {
  ExpertMapLimits redundant = kFour;
  redundant.allow_redundant = true;
  expect_refused({"5 slots", "--ep 2"}, "[0, 1, 2, 3, 0]", redundant);
  expect_refused({"different numbers"}, R"({"slots": [0, 1, 2, 3], "slots_per_rank": [1, 3]})");
  redundant.allow_uneven = true;
  expect_refused({"5 slots", "adds up to 4"},
                 R"({"slots": [0, 1, 2, 3, 0], "slots_per_rank": [1, 3]})", redundant);
  expect_refused({"list of 2 numbers"}, R"({"slots": [0, 1, 2, 3], "slots_per_rank": [4]})",
                 redundant);
  expect_refused({"slots_per_rank holds 0"}, R"({"slots": [0, 1, 2, 3], "slots_per_rank": [0, 4]})",
                 redundant);
  redundant.ep = 5;
  expect_refused({"4 slots", "--ep 5"}, "[0, 1, 2, 3]", redundant);
}

TEST(ExpertMap, RefusesLayersWithoutAList) {
  expect_refused({"no list for layer 2"}, R"({"layers": {"1": [0, 1, 2, 3]}})");
}

TEST(ExpertMap, RefusesListsForLayersWithoutExperts) {
  for (const char* layer : {"0", "3", "01", "-1", "x", "", "99999999999"}) {
    expect_refused({std::string("layer '") + layer + "'", "1 to 2"},
                   std::string(R"({"layers": {"1": [0,1,2,3], "2": [0,1,2,3], ")") + layer +
                       R"(": [0,1,2,3]}})");
  }
}

TEST(ExpertMap, RefusesASharedExpertInSomeLayersOnly) {
  ExpertMapLimits limits = kFour;
  limits.has_shared = limits.allow_uneven = true;
  expect_refused({"layer 2", "layer 1"}, R"({"layers": {"1": [0, 1, 2, 3], "2": [0, 1, 2, 3, 4]}})",
                 limits);
}

TEST(ExpertMap, TellsAllFaultsTogether) {
  expect_refused({"expert 1 is in no slot", "expert 3 is in no slot", "expert 0 is in 3 slots"},
                 "[0, 0, 0, 2]");
}

TEST(ExpertMap, RefusesWhatIsNoMap) {
  expect_refused({"neither a list"}, "7");
  expect_refused({"either slots"}, "{}");
  expect_refused({"either slots"}, R"({"slots": [0, 1, 2, 3], "layers": {}})");
  expect_refused({"unknown key 'slot'"}, R"({"slot": [0, 1, 2, 3]})");
  expect_refused({"not a list of experts"}, R"({"slots": 3})");
  expect_refused({"not an object"}, R"({"layers": [0]})");
  expect_refused({"0 slots"}, "[]");
  expect_refused({"no experts"}, "[0]", {.n_experts = 0});
  expect_error(ErrorCode::kCorrupt, {"map.json"}, [] { parse("[0, 1"); });
}

}  // namespace
}  // namespace ingot::shard
