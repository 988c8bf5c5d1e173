#include "inference/tokenizer/added_tokens.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "inference/tokenizer/tokenizer.h"
#include "tests/inference/tokenizer/byte_tokenizer.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using formats::Json;
using Ids = std::vector<std::int32_t>;
using testing::added_token;

Tokenizer with_tokens(const std::vector<Json>& tokens, const Json& normalizer = nullptr) {
  Json document = testing::byte_tokenizer_json();
  document["added_tokens"] = tokens;
  document["normalizer"] = normalizer;
  return Tokenizer::parse(document.dump(), "tokenizer.json");
}

Json changed(Json token, const std::string& key, bool value) {
  token[key] = value;
  return token;
}

TEST(AddedTokens, AreFoundWhetherSpecialOrNot) {
  const auto tokenizer = with_tokens({added_token(300, "<s>", true), added_token(301, "<u>")});
  EXPECT_EQ(tokenizer.encode("a<s>b<u><u", false), (Ids{'a', 300, 'b', 301, '<', 'u'}));
}

TEST(AddedTokens, AreFoundLeftmostThenLongest) {
  const auto tokenizer = with_tokens({added_token(300, "ab"), added_token(301, "abcd"),
                                      added_token(302, "bcde"), added_token(303, "abc")});
  EXPECT_EQ(tokenizer.encode("abcde", false), (Ids{301, 'e'}));
  EXPECT_EQ(tokenizer.encode("abcx", false), (Ids{303, 'x'}));
  EXPECT_EQ(tokenizer.encode("aabab", false), (Ids{'a', 300, 300}));
}

TEST(AddedTokens, StayInTheTextUnlessSpecial) {
  const auto tokenizer =
      with_tokens({added_token(300, "<｜end｜>", true), added_token(301, "<think>")});
  const Ids ids{301, 'a', 300};
  EXPECT_EQ(tokenizer.decode(ids, false), "<think>a<｜end｜>");
  EXPECT_EQ(tokenizer.decode(ids, true), "<think>a");
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special('a'));
}

TEST(AddedTokens, AreSpelledWithTheirOwnBars) {
  const auto tokenizer = with_tokens({added_token(300, "<｜User｜>")});
  EXPECT_EQ(tokenizer.encode("<|User|>", false).size(), 8U);
  EXPECT_EQ(tokenizer.encode("<｜User｜>", false), Ids{300});
}

TEST(AddedTokens, TakeWhiteSpaceAlong) {
  const auto tokenizer = with_tokens({changed(added_token(300, "<l>"), "lstrip", true),
                                      changed(added_token(301, "<r>"), "rstrip", true)});
  EXPECT_EQ(tokenizer.encode("a \u3000<l> b", false), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(tokenizer.encode("a <r> \n b", false), (Ids{'a', ' ', 301, 'b'}));
  EXPECT_EQ(tokenizer.encode("<r>  <l>", false), (Ids{301, 300}));
}

TEST(AddedTokens, StandAloneIfTheyMust) {
  const auto tokenizer = with_tokens({changed(added_token(300, "ab"), "single_word", true)});
  EXPECT_EQ(tokenizer.encode("ab ab,", false), (Ids{300, ' ', 300, ','}));
  EXPECT_EQ(tokenizer.encode("xab", false), (Ids{'x', 'a', 'b'}));
  EXPECT_EQ(tokenizer.encode("ab_", false), (Ids{'a', 'b', '_'}));
  EXPECT_EQ(tokenizer.encode("ab\u0301", false), (Ids{'a', 'b', 0xCC, 0x81}));
}

TEST(AddedTokens, AreFoundInNormalizedTextIfNormalized) {
  const Json lowercase{{"type", "Lowercase"}};
  const auto tokenizer = with_tokens(
      {changed(added_token(300, "AB"), "normalized", true), added_token(301, "CD")}, lowercase);
  EXPECT_EQ(tokenizer.encode("AbCDcd", false), (Ids{300, 301, 'c', 'd'}));
}

TEST(AddedTokens, HideWhatIsInThemFromTheNormalizer) {
  const auto tokenizer = with_tokens({added_token(300, "e\u0301")}, {{"type", "NFC"}});
  EXPECT_EQ(tokenizer.encode("e\u0301", false), Ids{300});
}

TEST(AddedTokens, MayStandInTheVocabularyToo) {
  const auto tokenizer = with_tokens({added_token('a', "a", true)});
  EXPECT_EQ(tokenizer.encode("ba", false), (Ids{'b', 'a'}));
  EXPECT_TRUE(tokenizer.is_special('a'));
  EXPECT_EQ(tokenizer.size(), 256U);
}

TEST(AddedTokens, AreRefusedWhenContradictory) {
  const auto refuses = [](const std::vector<Json>& tokens, const std::string& fragment) {
    testing::expect_error(ErrorCode::kCorrupt, {"tokenizer.json", "added_tokens[", fragment},
                          [&] { with_tokens(tokens); });
  };
  refuses({added_token(300, "a")}, "gives token \"a\" id 300, but the model's vocab gives it 97");
  refuses({added_token(97, "x1")}, "gives id 97 to \"x1\"");
  refuses({added_token(300, "x1"), added_token(300, "x2")}, "repeats the id 300");
  refuses({added_token(300, "x1"), added_token(301, "x1")}, "or the text \"x1\"");
  refuses({added_token(-1, "x1")}, "not a whole number");
  refuses({Json("x1")}, "is not an object");
}

TEST(AddedTokens, AreNotVeryLong) {
  EXPECT_EQ(with_tokens({added_token(300, std::string(1024, 'x'))}).size(), 301U);
  testing::expect_error(ErrorCode::kLimit, {"1025 bytes"},
                        [] { with_tokens({added_token(300, std::string(1025, 'x'))}); });
}

TEST(TextFinder, FindsWhatASearchByEveryTextFinds) {
  const std::vector<std::string> texts{"a", "ab", "", "abc", "bc", "c\xC3", "b", "\xFF", "cab"};
  const TextFinder finder(texts);
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < 5000; ++i) {
    state = state * 1'664'525U + 1'013'904'223U;
    text += std::string("abc\xC3\xFF")[state >> 24 & 3U ? state >> 28 & 3U : state >> 28 & 4U];
  }
  for (std::size_t from = 0; from < text.size(); ++from) {
    std::size_t begin = from;
    std::size_t best = texts.size();
    for (; begin < text.size() && best == texts.size(); ++begin) {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const bool matches =
            !texts[i].empty() && text.compare(begin, texts[i].size(), texts[i]) == 0;
        if (matches && (best == texts.size() || texts[i].size() > texts[best].size())) best = i;
      }
    }
    const auto found = finder.find(text, from);
    ASSERT_EQ(found.has_value(), best < texts.size());
    if (!found) continue;
    ASSERT_EQ(found->index, best);
    ASSERT_EQ(found->span.begin, begin - 1);
    ASSERT_EQ(found->span.end, begin - 1 + texts[best].size());
  }
}

}  // namespace
}  // namespace ingot::inference
