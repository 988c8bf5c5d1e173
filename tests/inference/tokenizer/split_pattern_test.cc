#include "inference/tokenizer/split_pattern.h"

#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using Texts = std::vector<std::string>;

Texts found(const SplitPattern& pattern, std::string_view text) {
  std::vector<Span> matches;
  pattern.find_all(text, matches);
  Texts texts;
  for (const Span& match : matches)
    texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

Texts found(std::string_view pattern, std::string_view text) {
  return found(SplitPattern::regex(pattern), text);
}

struct Case {
  std::string_view claim, pattern, text;
  Texts found;
};

// The texts by \w are those that Hugging Face's tokenizers 0.23.3 return.
const std::vector<Case> kCases{
    {"U+180E and U+200B are no white space",
     R"(\s)",
     "a\u00A0\u2003\u3000\u0085\u180E\u200Bb",
     {"\u00A0", "\u2003", "\u3000", "\u0085"}},
    {"nor in classes", R"([^\s]+)", "a\u180E b", {"a\u180E", "b"}},
    {"nor negated", R"(\S+)", "a\u180E b", {"a\u180E", "b"}},
    {"marks, circled letters, ties and Latin-1 fractions belong to words",
     R"(\w+)",
     "e\u0301\u24D0\u203Fx\u00BD",
     {"e\u0301\u24D0\u203Fx\u00BD"}},
    {"fractions do not where a class has words", R"([\w-]+)", "e\u0301-x \u00BD", {"e\u0301-x"}},
    {"", R"(\W)", "a \u00BD\u0301", {" "}},
    {"", R"([\W\d])", "a1\u00BD", {"1", "\u00BD"}},
    {"", R"([^\W\d])", "a1\u00BD\n", {"a"}},
    {"digits are decimal", R"(\d)", "1\u0663\u00B2\u2167", {"1", "\u0663"}},
    {"numbers are not", R"(\p{N})", "1\u0663\u00B2\u2167", {"1", "\u0663", "\u00B2", "\u2167"}},
    {"words start behind marks", R"(\b\w)", "ab e\u0301\u0301f", {"a", "e"}},
    {"", R"(\B\w)", "ab", {"b"}},

    {"short names", R"(\p{Lu})", "aB1", {"B"}},
    {"long names", R"(\p{Uppercase_Letter})", "aB1", {"B"}},
    {"negated names", R"(\p{^L})", "aB1", {"1"}},
    {"", R"(\P{letter})", "aB1", {"1"}},
    {"", R"([\P{L}a])", "aB1", {"a", "1"}},
    {"scripts", R"(\p{Greek}+)", "aαβ", {"αβ"}},
    {"", R"(\p{White_Space})", "a b", {" "}},
    {"U+3001 is used with Han and has the script Common",
     R"(\p{Han}+)",
     "漢字、仮",
     {"漢字", "仮"}},
    {"POSIX brackets", R"([[:alpha:]]+)", "aé1", {"aé"}},

    {"anchors hold at every line", R"(\s+$)", "a  \nb ", {"  ", " "}},
    {"", R"(a$)", "a\na\n", {"a", "a"}},
    {"", R"(^a)", "a\na\ra", {"a", "a"}},
    {"the dot takes all but line feeds", R"(.+)", "a\rb\nc", {"a\rb", "c"}},
    {"", R"((?m:.+))", "a\nc", {"a\nc"}},
    {"", R"(\Aa|b\z)", "aab\nb", {"a", "b"}},

    {"the first alternative wins, not the longest", "a|ab", "ab", {"a"}},
    {"case may be ignored", "(?i:'s|'t)|x", "'S'tX", {"'S", "'t"}},
    {"", "(?i)a|b", "AB", {"A", "B"}},
    {"", R"((?i:x(?-i:y)\p{N})|\p{Lu})", "XY1Xy1", {"X", "Y", "Xy1"}},
    {"", R"(a(?i)b)", "aBAB", {"aB"}},

    {"an interval and + repeat a repeat", R"(\d{1,3}+)", "12345", {"12345"}},
    {"", R"(a{2}?b)", "aab b", {"aab", "b"}},
    {"", R"(a{2,3}?)", "aaaa", {"aa", "aa"}},
    {"possessive repeats", R"(a++b|a+)", "aaab", {"aaab"}},
    {"", R"(a?+a)", "a", {}},
    {"", R"(a{,2}b)", "aaab", {"aab"}},
    {"braces that are no interval", R"(a{|x{y})", "a{x{y}", {"a{", "x{y}"}},
    {"groups", R"((ab)+c)", "ababc", {"ababc"}},
    {"back references", R"((a|b)\1)", "abb", {"bb"}},

    {"classes intersect", R"([\p{L}&&[^\p{Han}]]+)", "ab漢c", {"ab", "c"}},
    {"", R"([a-m&&f-z&&[^h]]+)", "afghijz", {"fg", "ij"}},
    {"", R"([^a-m&&f-z]+)", "aefz", {"ae", "z"}},
    {"classes nest", R"([a[bc]]+)", "abcd", {"abc"}},
    {"", R"([a[^b]]+)", "abca", {"a", "ca"}},
    {"", R"([^[ab]]+)", "abcd", {"cd"}},
    {"classes hold literals",
     R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]+)",
     "a!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~b",
     {"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"}},
    {"", "[]a]+", "]a[", {"]a"}},
    {"", "[-a]+", "-a", {"-a"}},
    {"", "[a-]+", "-ab", {"-a"}},
    {"", "[一-龥]+", "a中文", {"中文"}},
    {"", R"([\x{4E00}-\x{9FA5}\x41\n\r\t\b])", "A\b\n", {"A", "\b", "\n"}},
    {"\\h is a hexadecimal digit", R"(\h\v\e)", "f\v\x1B", {"f\v\x1B"}},
    {"", R"([\h]+)", "x09afAFg", {"09afAF"}},

    {"lookarounds", R"(\s+(?!\S)|\s+)", "a   b  ", {"  ", " ", "  "}},
    {"", R"((?<=a)b|(?<!a)c)", "abacc", {"b", "c"}},
    {"", R"((?>a+)b|a(?=c))", "aabac", {"aab", "a"}},
    {"a kept start is never before the last match", R"(a|(?<=\Ka)b)", "ab", {"a", "b"}},
    {"no empty match comes right behind a match", "a*", "baac", {"", "aa", ""}},
};

TEST(SplitPattern, MatchesAsOnigurumaDoes) {
  for (const Case& row : kCases)
    EXPECT_EQ(found(row.pattern, row.text), row.found) << row.pattern << ": " << row.claim;
}

TEST(SplitPattern, MatchesLiteralsAsTheyStand) {
  EXPECT_EQ(found(SplitPattern::literal("a.*(["), "a.*([a"), Texts{"a.*(["});
  EXPECT_EQ(found(SplitPattern::literal("\u2581"), "\u2581a\u2581"), (Texts{"\u2581", "\u2581"}));
  EXPECT_EQ(found(SplitPattern::literal(""), "aé"), (Texts{"", "", ""}));
}

TEST(SplitPattern, RefusesWhatOnigurumaRefuses) {
  const auto nested = [](char open) { return std::string(5000, open) + "a"; };
  const std::vector<std::pair<ErrorCode, std::vector<std::string>>> kRefused{
      {ErrorCode::kUnsupported,
       {R"(\p{Nonsense})", "(*UCP)a", "*a", R"(\xE4)", R"([a-\w])", "(?R)", R"(\C)", "(?{code})",
        nested('('), nested('[')}},
      {ErrorCode::kCorrupt, {"(a", "a)", "[a", "a\\", R"(\p{L)", "[b-a]", "(?#a"}},
      {ErrorCode::kLimit, {std::string(40'000, 'a')}}};
  for (const auto& [code, patterns] : kRefused) {
    for (const std::string& pattern : patterns) {
      SCOPED_TRACE(pattern.substr(0, 40));
      testing::expect_error(code, {"pattern "}, [&] { SplitPattern::regex(pattern); });
    }
  }
  EXPECT_EQ(found(std::string(50, '(') + "a" + std::string(50, ')'), "a"), Texts{"a"});
}

TEST(SplitPattern, StopsEndlessBacktracking) {
  const std::string text = std::string(60, 'a') + "!";
  for (const std::string pattern : {"(a+)+$", "(a|a)*$", "(?:a|aa)+$"}) {
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
