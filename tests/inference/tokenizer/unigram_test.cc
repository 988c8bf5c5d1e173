#include "inference/tokenizer/unigram.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "inference/tokenizer/tokenizer.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {

using enum ErrorCode;
using formats::Json;
using testing::expect_error;
using Ids = std::vector<std::int32_t>;

namespace {

using Scores = std::vector<std::pair<std::string, double>>;

Json document(const Json& vocab, const Json& unknown = 0, bool byte_fallback = false) {
  return {{"model",
           {{"type", "Unigram"},
            {"vocab", vocab},
            {"unk_id", unknown},
            {"byte_fallback", byte_fallback}}}};
}

Json document(const Scores& scores, const Json& unknown = 0, bool byte_fallback = false) {
  Json vocab = Json::array();
  for (const auto& [token, score] : scores) vocab.push_back(Json::array({token, score}));
  return document(vocab, unknown, byte_fallback);
}

Ids encode(const Json& json, const std::string& text) {
  return Tokenizer::parse(json.dump(), "tokenizer.json").encode(text, false);
}

TEST(Unigram, TakesTheLikeliestTokens) {
  const Json json =
      document(Scores{{"<unk>", 0}, {"a", -1}, {"b", -2}, {"ab", -2.5}, {"ba", -1.5}});
  EXPECT_EQ(encode(json, "ab"), (Ids{3}));
  EXPECT_EQ(encode(json, "aba"), (Ids{1, 4})) << "not ab, a: -3.5";
  EXPECT_EQ(encode(json, ""), Ids{});
}

TEST(Unigram, KeepsTheFirstFoundOfEqualWays) {
  const Json json = document(Scores{{"<unk>", 0}, {"a", -1}, {"aa", -2}, {"aaa", -3}});
  EXPECT_EQ(encode(json, "aaa"), (Ids{3}));
  EXPECT_EQ(encode(json, "aaaa"), (Ids{1, 3})) << "the last token starts as early as it can";
}

TEST(Unigram, JoinsUnknownCharacters) {
  const Json json = document(Scores{{"<unk>", 0}, {"a", -1}});
  EXPECT_EQ(encode(json, "x\u00e9yaz"), (Ids{0, 1, 0}));
  expect_error(kCorrupt, {"no token for \"x\"", "no unk_id"}, [] {
    encode(document(Scores{{"a", -1}}, nullptr), "ax");
  });
}

TEST(Unigram, FallsBackToBytesWhereAllAreTokens) {
  const Scores some = {{"<unk>", 0}, {"<0xC3>", 0}, {"<0xA9>", 0}, {"a", -1}};
  EXPECT_EQ(encode(document(some, 0, true), "a\u00e9"), (Ids{3, 1, 2}));
  EXPECT_EQ(encode(document(some, 0, true), "\u00e9\u00e8"), (Ids{0})) << "no byte A8";
  EXPECT_EQ(encode(document(some, 0, false), "\u00e9"), (Ids{0}));
}

// Every way to cut a short text, one by one.
TEST(Unigram, NoOtherWayHasALargerSum) {
  std::mt19937 random(3);
  const std::string letters = "abc";
  for (int round = 0; round < 50; ++round) {
    Scores vocab = {{"<unk>", 0.0}};
    std::map<std::string, double> scores;
    for (int i = 0; i < 12; ++i) {
      std::string token;
      for (std::size_t n = 1 + random() % 3; token.size() < n;) token += letters[random() % 3];
      const double score = -static_cast<double>(random() % 1000) / 64;
      if (scores.emplace(token, score).second) vocab.emplace_back(token, score);
    }
    for (const char letter : letters) {
      if (scores.emplace(std::string(1, letter), -20).second)
        vocab.emplace_back(std::string(1, letter), -20);
    }
    std::string text;
    while (text.size() < 9) text += letters[random() % 3];
    double best = -1e9;
    for (unsigned cuts = 0; cuts < 1U << 8U; ++cuts) {
      double sum = 0;
      std::size_t start = 0;
      for (std::size_t end = 1; end <= text.size(); ++end) {
        if (end < text.size() && (cuts >> (end - 1) & 1U) == 0) continue;
        const auto found = scores.find(text.substr(start, end - start));
        sum += found == scores.end() ? -1e9 : found->second;
        start = end;
      }
      best = std::max(best, sum);
    }
    double got = 0;
    for (const std::int32_t id : encode(document(vocab), text))
      got += vocab[static_cast<std::size_t>(id)].second;
    EXPECT_EQ(got, best) << text;
  }
}

TEST(Unigram, RefusesWhatIsNoVocabulary) {
  const auto refuses = [](ErrorCode code, const Json& json, const std::string& fault) {
    expect_error(code, {fault}, [&] { encode(json, "a"); });
  };
  refuses(kCorrupt, document(Json::object()), "vocab' is not a list");
  refuses(kCorrupt, document(Json::array({"a"})), "entry 0 of vocab");
  refuses(kCorrupt, document(Json::array({Json::array({"a", "b"})})), "a score that is no number");
  refuses(kCorrupt, document(Scores{{"a", 0}, {"a", 1}}), "gives token \"a\" the ids 0 and 1");
  refuses(kCorrupt, document(Scores{{"a", 0}}, 1), "unk_id' is no token");
  refuses(kLimit, document(Scores{{std::string(513, 'a'), 0}}), "a token of 513 bytes");
}

}  // namespace
}  // namespace ingot::inference
