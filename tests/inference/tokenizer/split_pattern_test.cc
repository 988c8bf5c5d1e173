#include "inference/tokenizer/split_pattern.h"

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using Texts = std::vector<std::string>;

Texts found(const SplitPattern& pattern, std::string_view text) {
  PatternScratch scratch;
  std::vector<Span> matches;
  pattern.find_all(text, scratch, matches);
  Texts texts;
  for (const Span& match : matches)
    texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

Texts found(std::string_view pattern, std::string_view text) {
  return found(SplitPattern::regex(pattern), text);
}

TEST(SplitPattern, TakesWhiteSpaceAsUnicodeDoes) {
  // U+180E is a blank for PCRE2, U+200B for nobody.
  EXPECT_EQ(found(R"(\s)", "a\u00A0\u2003\u3000\u0085\u180E\u200Bb"),
            (Texts{"\u00A0", "\u2003", "\u3000", "\u0085"}));
  EXPECT_EQ(found(R"([^\s]+)", "a\u180E b"), (Texts{"a\u180E", "b"}));
  EXPECT_EQ(found(R"(\S+)", "a\u180E b"), (Texts{"a\u180E", "b"}));
}

TEST(SplitPattern, TakesWordsAndDigitsAsUnicodeDoes) {
  // A combining mark, a circled letter and a tie belong to words, a fraction does not.
  EXPECT_EQ(found(R"(\w+)", "e\u0301\u24D0\u203Fx\u00BD"), Texts{"e\u0301\u24D0\u203Fx"});
  EXPECT_EQ(found(R"([\w-]+)", "e\u0301-x \u00BD"), Texts{"e\u0301-x"});
  EXPECT_EQ(found(R"(\W)", "a\u00BD\u0301"), Texts{"\u00BD"});
  EXPECT_EQ(found(R"([\W\d])", "a1\u00BD"), (Texts{"1", "\u00BD"}));
  EXPECT_EQ(found(R"([^\W\d])", "a1\u00BD\n"), Texts{"a"});
  EXPECT_EQ(found(R"(\d)", "1\u0663\u00B2\u2167"), (Texts{"1", "\u0663"}));
  EXPECT_EQ(found(R"(\p{N})", "1\u0663\u00B2\u2167"), (Texts{"1", "\u0663", "\u00B2", "\u2167"}));
  EXPECT_EQ(found(R"(\b\w)", "ab e\u0301\u0301f"), (Texts{"a", "e"}));
  EXPECT_EQ(found(R"(\B\w)", "ab"), Texts{"b"});
}

TEST(SplitPattern, KnowsPropertiesByShortAndLongNames) {
  EXPECT_EQ(found(R"(\p{Lu})", "aB1"), Texts{"B"});
  EXPECT_EQ(found(R"(\p{Uppercase_Letter})", "aB1"), Texts{"B"});
  EXPECT_EQ(found(R"(\p{^L})", "aB1"), Texts{"1"});
  EXPECT_EQ(found(R"(\P{letter})", "aB1"), Texts{"1"});
  EXPECT_EQ(found(R"([\P{L}a])", "aB1"), (Texts{"a", "1"}));
  EXPECT_EQ(found(R"(\p{Greek}+)", "aαβ"), Texts{"αβ"});
  EXPECT_EQ(found(R"(\p{White_Space})", "a b"), Texts{" "});
  // U+3001 is used with Han and has the script Common.
  EXPECT_EQ(found(R"(\p{Han}+)", "漢字、仮"), (Texts{"漢字", "仮"}));
}

TEST(SplitPattern, MatchesAnchorsAtEveryLine) {
  EXPECT_EQ(found(R"(\s+$)", "a  \nb "), (Texts{"  ", " "}));
  EXPECT_EQ(found(R"(a$)", "a\na\n"), (Texts{"a", "a"}));
  EXPECT_EQ(found(R"(^a)", "a\na\ra"), (Texts{"a", "a"}));
  EXPECT_EQ(found(R"(.+)", "a\rb\nc"), (Texts{"a\rb", "c"}));
  EXPECT_EQ(found(R"(\Aa|b\z)", "aab\nb"), (Texts{"a", "b"}));
}

TEST(SplitPattern, TakesTheFirstAlternativeNotTheLongest) {
  EXPECT_EQ(found("a|ab", "ab"), Texts{"a"});
  EXPECT_EQ(found("(?i:'s|'t)|x", "'S'tX"), (Texts{"'S", "'t"}));
  EXPECT_EQ(found("(?i)a|b", "AB"), (Texts{"A", "B"}));
  EXPECT_EQ(found(R"((?i:x(?-i:y)\p{N})|\p{Lu})", "XY1Xy1"), (Texts{"X", "Y", "Xy1"}));
}

TEST(SplitPattern, RepeatsARepeat) {
  // PCRE2 would take these for a possessive and a lazy repeat.
  EXPECT_EQ(found(R"(\d{1,3}+)", "12345"), Texts{"12345"});
  EXPECT_EQ(found(R"(a{2}?b)", "aab b"), (Texts{"aab", "b"}));
  EXPECT_EQ(found(R"(a{2,3}?)", "aaaa"), (Texts{"aa", "aa"}));
  EXPECT_EQ(found(R"(a++b|a+)", "aaab"), Texts{"aaab"});
  EXPECT_EQ(found(R"(a?+a)", "a"), Texts{});
  EXPECT_EQ(found(R"(a{,2}b)", "aaab"), Texts{"aab"});
  EXPECT_EQ(found(R"(a{|x{y})", "a{x{y}"), (Texts{"a{", "x{y}"}));
  EXPECT_EQ(found(R"((ab)+c)", "ababc"), Texts{"ababc"});
}

TEST(SplitPattern, IntersectsAndNestsClasses) {
  EXPECT_EQ(found(R"([\p{L}&&[^\p{Han}]]+)", "ab漢c"), (Texts{"ab", "c"}));
  EXPECT_EQ(found(R"([a-m&&f-z&&[^h]]+)", "afghijz"), (Texts{"fg", "ij"}));
  EXPECT_EQ(found(R"([^a-m&&f-z]+)", "aefz"), (Texts{"ae", "z"}));
  EXPECT_EQ(found(R"([a[bc]]+)", "abcd"), Texts{"abc"});
  EXPECT_EQ(found(R"([a[^b]]+)", "abca"), (Texts{"a", "ca"}));
  EXPECT_EQ(found(R"([^[ab]]+)", "abcd"), Texts{"cd"});
}

TEST(SplitPattern, ReadsLiteralsInClasses) {
  EXPECT_EQ(
      found(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]+)", "a!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~b"),
      Texts{"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"});
  EXPECT_EQ(found("[]a]+", "]a["), Texts{"]a"});
  EXPECT_EQ(found("[-a]+", "-a"), Texts{"-a"});
  EXPECT_EQ(found("[a-]+", "-ab"), Texts{"-a"});
  EXPECT_EQ(found("[一-龥]+", "a中文"), Texts{"中文"});
  EXPECT_EQ(found(R"([\x{4E00}-\x{9FA5}\x41\n\r\t\b])", "A\b\n"), (Texts{"A", "\b", "\n"}));
  EXPECT_EQ(found(R"(\h\v\e)", "f\v\x1B"), Texts{"f\v\x1B"});
  EXPECT_EQ(found(R"([\h]+)", "x09afAFg"), Texts{"09afAF"});
}

TEST(SplitPattern, LooksAround) {
  EXPECT_EQ(found(R"(\s+(?!\S)|\s+)", "a   b  "), (Texts{"  ", " ", "  "}));
  EXPECT_EQ(found(R"((?<=a)b|(?<!a)c)", "abacc"), (Texts{"b", "c"}));
  EXPECT_EQ(found(R"((?>a+)b|a(?=c))", "aabac"), (Texts{"aab", "a"}));
}

TEST(SplitPattern, MatchesLiteralsAsTheyStand) {
  EXPECT_EQ(found(SplitPattern::literal("a.*(["), "a.*([a"), Texts{"a.*(["});
  EXPECT_EQ(found(SplitPattern::literal("\u2581"), "\u2581a\u2581"), (Texts{"\u2581", "\u2581"}));
  EXPECT_EQ(found(SplitPattern::literal(""), "aé"), (Texts{"", "", ""}));
}

TEST(SplitPattern, FindsNoEmptyMatchBehindAMatch) {
  EXPECT_EQ(found("a*", "baac"), (Texts{"", "aa", ""}));
}

TEST(SplitPattern, NamesWhatItDoesNotSupport) {
  for (const std::string pattern : {R"((a)\1)",
                                    R"([[:alpha:]])",
                                    R"((?<n>a))",
                                    R"((?m:a))",
                                    R"(\p{Nonsense})",
                                    R"(\X)",
                                    R"(\K)",
                                    R"(\G)",
                                    R"((*UCP)a)",
                                    R"(a(?i)b)",
                                    R"(*a)",
                                    R"(\u0041)",
                                    R"(\xE4)",
                                    R"([a-\w])",
                                    R"((?<=a+)b)",
                                    R"(a{5,2})",
                                    R"([a&&])",
                                    R"((?R))",
                                    R"((?{code}))",
                                    R"(\C)",
                                    R"((?i:\p{Lu}))",
                                    R"((?i)\p{Greek})",
                                    R"(\Q)"}) {
    SCOPED_TRACE(pattern);
    testing::expect_error(ErrorCode::kUnsupported, {"pattern "},
                          [&] { SplitPattern::regex(pattern); });
  }
}

TEST(SplitPattern, RefusesWhatIsNoPattern) {
  for (const std::string pattern :
       {"(a", "a)", "[a", "a\\", R"(\p{L)", R"(\x{110000})", R"(\x{D800})", "[b-a]", "(?#a"}) {
    SCOPED_TRACE(pattern);
    testing::expect_error(ErrorCode::kCorrupt, {"pattern "}, [&] { SplitPattern::regex(pattern); });
  }
}

TEST(SplitPattern, BoundsDepthAndLength) {
  const auto nested = [](std::size_t n, char open, char close) {
    return std::string(n, open) + "a" + std::string(n, close);
  };
  EXPECT_EQ(found(nested(50, '(', ')'), "a"), Texts{"a"});
  for (const std::string& pattern : {nested(5000, '(', ')'), nested(5000, '[', ']')})
    testing::expect_error(ErrorCode::kUnsupported, {"deeper"},
                          [&] { SplitPattern::regex(pattern); });
  testing::expect_error(ErrorCode::kLimit, {"bytes"},
                        [&] { SplitPattern::regex(std::string(40'000, 'a')); });
}

TEST(SplitPattern, StopsPatternsThatBacktrackWithoutEnd) {
  const std::string text = std::string(60, 'a') + "!";
  for (const std::string pattern : {"(a+)+$", "(a|a)*$", "(?:a|aa)+$", "(?:(?:a*)*)*[bc]"}) {
    SCOPED_TRACE(pattern);
    const auto compiled = SplitPattern::regex(pattern);
    testing::expect_error(ErrorCode::kLimit, {"pattern ", "61 bytes"},
                          [&] { found(compiled, text); });
  }
}

TEST(SplitPattern, TakesLongRunsOfEveryKind) {
  constexpr std::size_t kLength = 1'000'000;
  const std::string spaces(kLength, ' ');
  EXPECT_EQ(found(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "a").size(), 2U);
  // More repeats of a group than compiled code can remember.
  EXPECT_EQ(found(R"([\p{L}&&[^\p{Han}]]+)", std::string(kLength, 'a')).size(), 1U);
}

TEST(SplitPattern, SearchesOnManyThreads) {
  const auto pattern = SplitPattern::regex(R"(\p{L}+|\s+)");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word ";
  std::vector<std::size_t> counts(4);
  std::vector<std::jthread> threads;
  for (std::size_t& count : counts)
    threads.emplace_back([&] { count = found(pattern, text).size(); });
  threads.clear();
  for (const std::size_t count : counts) EXPECT_EQ(count, 4000U);
}

}  // namespace
}  // namespace ingot::inference
