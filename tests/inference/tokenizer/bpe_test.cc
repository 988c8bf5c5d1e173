#include "inference/tokenizer/bpe.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using formats::Json;
using Ids = std::vector<std::int32_t>;
using Tokens = std::vector<std::string>;
using Merges = std::vector<std::pair<std::string, std::string>>;

/// A model with what it refers to.
class Model {
 public:
  explicit Model(Json json)
      : json_(std::move(json)),
        vocabulary_(Vocabulary::parse(Component(json_, "model"))),
        bpe_(Bpe::parse(Component(json_, "model"), vocabulary_)) {}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  Tokens encode(std::string_view piece) {
    Ids ids;
    bpe_.encode(piece, scratch_, ids);
    Tokens tokens;
    for (const auto id : ids) tokens.push_back(*vocabulary_.text(id));
    return tokens;
  }

 private:
  Json json_;
  Vocabulary vocabulary_;
  Bpe bpe_;
  BpeScratch scratch_;
};

Json vocab_of(const Tokens& tokens) {
  Json vocab = Json::object();
  for (const auto& token : tokens) vocab[token] = vocab.size();
  return vocab;
}

Json model_json(const Tokens& tokens, Json merges) {
  return {{"vocab", vocab_of(tokens)}, {"merges", std::move(merges)}};
}

// The rule as it is stated, with no thought for time: again and again the pair that stands first in
// the list, at its leftmost place.
Tokens naive_bpe(const std::string& piece, const Merges& merges) {
  Tokens symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  while (true) {
    std::optional<std::size_t> best_rank;
    std::size_t best_place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        if (merges[rank] != std::pair(symbols[i], symbols[i + 1])) continue;
        if (!best_rank || rank < *best_rank) {
          best_rank = rank;
          best_place = i;
        }
      }
    }
    if (!best_rank) return symbols;
    symbols[best_place] += symbols[best_place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

TEST(Bpe, MergesAsTheStatedRuleDoesInRandomVocabularies) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::size_t n_merged = 0;
  for (int round = 0; round < 60; ++round) {
    const std::size_t n_letters = 2 + below(3);
    Tokens tokens;
    for (std::size_t i = 0; i < n_letters; ++i) tokens.emplace_back(1, static_cast<char>('a' + i));
    // Any pair of tokens may be a merge, in any order, several with the same result.
    Merges merges;
    for (int i = 0; i < 40; ++i) {
      const std::pair pair(tokens[below(tokens.size())], tokens[below(tokens.size())]);
      if (std::ranges::find(merges, pair) != merges.end()) continue;
      const std::string whole = pair.first + pair.second;
      if (std::ranges::find(tokens, whole) == tokens.end()) tokens.push_back(whole);
      merges.push_back(pair);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    Model model(model_json(tokens, merges));
    for (int i = 0; i < 40; ++i) {
      std::string piece;
      for (std::size_t n = 1 + below(60); n > 0; --n)
        piece += static_cast<char>('a' + below(n_letters));
      const Tokens expected = naive_bpe(piece, merges);
      ASSERT_EQ(model.encode(piece), expected) << piece;
      n_merged += piece.size() - expected.size();
    }
  }
  EXPECT_GT(n_merged, 10'000U);
}

TEST(Bpe, MergesByRankOfThePairNotByIdOfTheResult) {
  // "bc" has the lower id, "ab" the lower rank.
  Model model(model_json({"a", "b", "c", "bc", "ab"}, Merges{{"a", "b"}, {"b", "c"}}));
  EXPECT_EQ(model.encode("abc"), (Tokens{"ab", "c"}));
}

TEST(Bpe, MergesTheLeftmostOfEqualRanks) {
  Model model(model_json({"a", "aa"}, Merges{{"a", "a"}}));
  EXPECT_EQ(model.encode("aaaaa"), (Tokens{"aa", "aa", "a"}));
}

TEST(Bpe, ReadsMergesAsStringsAndAsPairs) {
  const Tokens tokens{"a", "b", "ab", "abb"};
  Model strings(model_json(tokens, {"#version: 0.2", "a b", "ab b"}));
  Model pairs(model_json(tokens, Merges{{"a", "b"}, {"ab", "b"}}));
  EXPECT_EQ(strings.encode("abbab"), (Tokens{"abb", "ab"}));
  EXPECT_EQ(pairs.encode("abbab"), (Tokens{"abb", "ab"}));
}

TEST(Bpe, ReadsPairsWithSpacesInThem) {
  Model model(model_json({" ", "a", "  ", "  a"}, Merges{{" ", " "}, {"  ", "a"}}));
  EXPECT_EQ(model.encode("  a "), (Tokens{"  a", " "}));
}

TEST(Bpe, TakesTheLastOfEqualMerges) {
  Model model(model_json({"a", "b", "c", "ab", "bc"}, {"a b", "b c", "a b"}));
  EXPECT_EQ(model.encode("abc"), (Tokens{"a", "bc"}));
}

TEST(Bpe, EmitsWholePiecesOnlyWithIgnoreMerges) {
  Json json = model_json({"a", "b", "c", "ab", "abc"}, {"a b"});
  Model merging(json);
  json["ignore_merges"] = true;
  Model ignoring(json);
  EXPECT_EQ(merging.encode("abc"), (Tokens{"ab", "c"}));
  EXPECT_EQ(ignoring.encode("abc"), Tokens{"abc"});
  EXPECT_EQ(ignoring.encode("abb"), (Tokens{"ab", "b"}));
}

TEST(Bpe, DropsCharactersThatAreNoTokens) {
  Model model(model_json({"a", "b", "ab"}, {"a b"}));
  EXPECT_EQ(model.encode("a?b"), Tokens{"ab"});
  EXPECT_EQ(model.encode("?"), Tokens{});
}

TEST(Bpe, PutsTheUnknownTokenForCharactersThatAreNoTokens) {
  Json json = model_json({"a", "<unk>"}, Json::array());
  json["unk_token"] = "<unk>";
  Model each(json);
  EXPECT_EQ(each.encode("a??a?"), (Tokens{"a", "<unk>", "<unk>", "a", "<unk>"}));
  json["fuse_unk"] = true;
  Model fused(json);
  EXPECT_EQ(fused.encode("a??a?"), (Tokens{"a", "<unk>", "a", "<unk>"}));
}

TEST(Bpe, NamesAnUnknownTokenThatIsNotThereWhenItIsNeeded) {
  Json json = model_json({"a"}, Json::array());
  json["unk_token"] = "<unk>";
  Model model(json);
  EXPECT_EQ(model.encode("a"), Tokens{"a"});
  testing::expect_error(ErrorCode::kCorrupt, {"<unk>", "\"?\""}, [&] { model.encode("?"); });
}

TEST(Bpe, FallsBackToBytesWhenAllOfThemAreTokens) {
  Json json = model_json({"a", "<0xC3>", "<0xA9>", "<unk>"}, Json::array());
  json["byte_fallback"] = true;
  json["unk_token"] = "<unk>";
  Model model(json);
  EXPECT_EQ(model.encode("aé"), (Tokens{"a", "<0xC3>", "<0xA9>"}));
  EXPECT_EQ(model.encode("aèa"), (Tokens{"a", "<unk>", "a"}));
}

TEST(Bpe, MergesWithAffixes) {
  Json json = model_json({"a", "##b", "##c</w>", "a</w>", "ab", "abc</w>"},
                         Merges{{"a", "##b"}, {"ab", "##c</w>"}});
  json["continuing_subword_prefix"] = "##";
  json["end_of_word_suffix"] = "</w>";
  Model model(json);
  EXPECT_EQ(model.encode("abc"), Tokens{"abc</w>"});
  EXPECT_EQ(model.encode("a"), Tokens{"a</w>"});
}

TEST(Bpe, MergesAMillionCharactersInOnePiece) {
  Model model(model_json({"a", "aa", "aaaa"}, {"a a", "aa aa"}));
  const Tokens tokens = model.encode(std::string(1'000'001, 'a'));
  ASSERT_EQ(tokens.size(), 250'001U);
  EXPECT_EQ(tokens.front(), "aaaa");
  EXPECT_EQ(tokens.back(), "a");
}

TEST(Bpe, RefusesMergesThatItsVocabularyDoesNotHave) {
  const auto refuses = [](Json merges, std::initializer_list<std::string> fragments) {
    testing::expect_error(ErrorCode::kCorrupt, fragments, [&] {
      Model(model_json({"a", "b", "ab"}, std::move(merges)));
    });
  };
  refuses({"a c"}, {"model", "\"c\" is not in its vocab"});
  refuses({"b a"}, {"\"ba\" is not in its vocab"});
  refuses({"ab"}, {"not two tokens"});
  refuses({"a b b"}, {"not two tokens"});
  refuses({{"a", "b", "b"}}, {"neither a string nor a pair"});
  refuses({7}, {"neither a string nor a pair"});
}

TEST(Bpe, RefusesVocabulariesThatAreNone) {
  const auto refuses = [](ErrorCode code, Json vocab, const std::string& fragment) {
    testing::expect_error(code, {fragment}, [&] {
      Model({{"vocab", std::move(vocab)}, {"merges", Json::array()}});
    });
  };
  refuses(ErrorCode::kCorrupt, {{"a", 0}, {"b", 0}}, "gives id 0 to both \"a\" and \"b\"");
  refuses(ErrorCode::kCorrupt, {{"a", -1}}, "not a whole number");
  refuses(ErrorCode::kCorrupt, {{"a", 1.5}}, "not a whole number");
  refuses(ErrorCode::kCorrupt, {{"a", "0"}}, "not a whole number");
  refuses(ErrorCode::kLimit, {{"a", 1LL << 40}}, "below 4194304");
  refuses(ErrorCode::kCorrupt, Json::array({"a"}), "'vocab' that is not an object");
}

TEST(Bpe, RefusesDropout) {
  Json json = model_json({"a"}, Json::array());
  json["dropout"] = 0.0;
  EXPECT_EQ(Model(json).encode("a"), Tokens{"a"});
  json["dropout"] = 0.1;
  testing::expect_error(ErrorCode::kUnsupported, {"dropout"}, [&] { Model{json}; });
}

}  // namespace
}  // namespace ingot::inference
