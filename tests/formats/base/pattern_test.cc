#include "formats/base/pattern.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/cpu_seconds.h"
#include "tests/support/expect_error.h"

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

}  // namespace
}  // namespace ingot
