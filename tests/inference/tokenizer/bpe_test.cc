#include "inference/tokenizer/bpe.h"

#include <openssl/evp.h>

#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/decoder.h"
#include "inference/tokenizer/tiktoken.h"
#include "inference/tokenizer/tokenizer.h"
#include "inference/tokenizer/unigram.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using Ids = std::vector<std::int32_t>;
using Merges = std::vector<std::pair<std::string, std::string>>;
using Tokens = std::vector<std::string>;
using formats::Json;
using ingot::testing::listed;

/// A model with the objects that it refers to.
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
    TextWork work;
    bpe_.encode(piece, scratch_, work, ids);
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

// The rule as it is stated, with no thought for time: again and again the pair that comes first in
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

TEST(Bpe, MergesRandomVocabulariesByTheStatedRule) {
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

struct Case {
  std::string_view claim;
  std::string tokens;  ///< separated by a blank, as are `merges` by a comma
  Json merges;
  Json options;
  std::string_view piece;
  std::string encoded;
};

TEST(Bpe, FollowsTheOptionsOfTheFile) {
  const Json none = Json::object(), no_merges = Json::array();
  const Json unknown = {{"unk_token", "<unk>"}};
  const Json fused = {{"unk_token", "<unk>"}, {"fuse_unk", true}};
  const Json fallback = {{"unk_token", "<unk>"}, {"byte_fallback", true}};
  const Json affixes = {{"continuing_subword_prefix", "##"}, {"end_of_word_suffix", "</w>"}};
  const Json whole = {{"ignore_merges", true}};
  const std::string abb = "a b ab abb", abc = "a b c ab abc", bytes = "a <0xC3> <0xA9> <unk>";
  const std::string affixed = "a ##b ##c</w> a</w> ab abc</w>";
  const Json affixed_merges = Merges{{"a", "##b"}, {"ab", "##c</w>"}};
  const Json abb_merges = Merges{{"a", "b"}, {"ab", "b"}};
  const std::vector<Case> kCases{
      {"bc has the lower id, ab the lower rank", "a b c bc ab", "a b,b c", none, "abc", "ab c"},
      {"the leftmost of equal ranks merges", "a aa", "a a", none, "aaaaa", "aa aa a"},
      {"merges are strings", abb, "#version: 0.2,a b,ab b", none, "abbab", "abb ab"},
      {"merges are pairs", abb, abb_merges, none, "abbab", "abb ab"},
      {"the last of equal merges counts", "a b c ab bc", "a b,b c,a b", none, "abc", "a bc"},
      {"whole pieces are merged", abc, "a b", none, "abc", "ab c"},
      {"unless merges are ignored", abc, "a b", whole, "abc", "abc"},
      {"for pieces that are tokens", abc, "a b", whole, "abb", "ab b"},
      {"other characters are dropped", "a b ab", "a b", none, "a?b", "ab"},
      {"even all", "a b ab", "a b", none, "?", ""},
      {"or become the unknown token", "a <unk>", no_merges, unknown, "a??a?",
       "a <unk> <unk> a <unk>"},
      {"one for a run", "a <unk>", no_merges, fused, "a??a?", "a <unk> a <unk>"},
      {"or their bytes", bytes, no_merges, fallback, "aé", "a <0xC3> <0xA9>"},
      {"where all bytes are tokens", bytes, no_merges, fallback, "aèa", "a <unk> a"},
      {"affixes are part of tokens", affixed, affixed_merges, affixes, "abc", "abc</w>"},
      {"a single character has the suffix alone", affixed, affixed_merges, affixes, "a", "a</w>"},
  };
  for (const Case& row : kCases) {
    const Json merges =
        row.merges.is_string() ? Json(listed(row.merges.get<std::string>(), ",")) : row.merges;
    Json json = model_json(listed(row.tokens, " "), merges);
    json.update(row.options);
    const Tokens encoded = row.encoded.empty() ? Tokens() : listed(row.encoded, " ");
    EXPECT_EQ(Model(json).encode(row.piece), encoded) << row.claim;
  }
  const Json spaced = model_json({" ", "a", "  ", "  a"}, Merges{{" ", " "}, {"  ", "a"}});
  EXPECT_EQ(Model(spaced).encode("  a "), (Tokens{"  a", " "})) << "pairs hold spaces";
}

TEST(Bpe, NamesAMissingUnknownTokenWhenNeeded) {
  Json json = model_json({"a"}, Json::array());
  json["unk_token"] = "<unk>";
  Model model(json);
  EXPECT_EQ(model.encode("a"), Tokens{"a"});
  testing::expect_error(ErrorCode::kCorrupt, {"<unk>", "\"?\""}, [&] { model.encode("?"); });
}

TEST(Bpe, MergesALongPieceInLittleTime) {
  Model model(model_json({"a", "aa", "aaaa"}, {"a a", "aa aa"}));
  const Tokens tokens = model.encode(std::string(200'001, 'a'));
  ASSERT_EQ(tokens.size(), 50'001U);
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
  refuses(ErrorCode::kCorrupt, Json::array({"a"}), "'vocab' is not an object");
}

TEST(Bpe, RefusesDropout) {
  Json json = model_json({"a"}, Json::array());
  json["dropout"] = 0.0;
  EXPECT_EQ(Model(json).encode("a"), Tokens{"a"});
  json["dropout"] = 0.1;
  testing::expect_error(ErrorCode::kUnsupported, {"dropout"}, [&] { Model{json}; });
}

/// The results of every push, then that of the finish.
Tokens streamed(const Json& json, const Tokens& tokens) {
  const Decoder decoder = Decoder::parse(json.is_null() ? nullptr : &json);
  DecodeChain chain(decoder);
  Tokens parts;
  for (const std::string& token : tokens) parts.push_back(chain.push(token));
  parts.push_back(chain.finish());
  return parts;
}

std::string decoded(const Json& json, const Tokens& tokens) {
  std::string text;
  for (const std::string& part : streamed(json, tokens)) text += part;
  return text;
}

Json decoders(const std::vector<Json>& steps) {
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// As published for the SentencePiece vocabularies of Llama 2 and Mistral.
Json llama2() {
  return decoders({{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}},
                   {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
}

TEST(ByteLevelDecoder, HoldsBackCharactersUntilTheyAreWhole) {
  // U+1F600 is F0 9F 98 80.
  EXPECT_EQ(streamed({{"type", "ByteLevel"}}, {"að", "Ł", "ĺ", "Ģb"}),
            (Tokens{"a", "", "", "😀b", ""}));
}

TEST(ByteLevelDecoder, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(streamed({{"type", "ByteLevel"}}, {"ð", "a", "Ã"}),
            (Tokens{"", "\uFFFDa", "", "\uFFFD"}));
}

TEST(ByteLevelDecoder, KeepsTokensThatAreNoByteCharacters) {
  EXPECT_EQ(decoded({{"type", "ByteLevel"}}, {"Ġa", "<｜User｜>", "日é"}), " a<｜User｜>日é");
}

TEST(LossyUtf8, ReplacesEveryMaximalPartOnce) {
  // Table 3-8 of the Unicode standard, and the sequences next to the bounds of table 3-7.
  const auto lossy = [](const std::string& bytes) {
    LossyUtf8 utf8;
    std::string text;
    for (const char byte : bytes) utf8.push(std::string(1, byte), text);
    utf8.finish(text);
    return text;
  };
  const std::string r = "\uFFFD";
  EXPECT_EQ(lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(lossy("\xC0\x80"), r + r);
  EXPECT_EQ(lossy("\xE0\x9F\xBF"), r + r + r);
  EXPECT_EQ(lossy("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(lossy("\xF0\x8F\xBF\xBF"), r + r + r + r);
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(lossy("\xF5\xFF"), r + r);
  EXPECT_EQ(lossy("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "😀");
  EXPECT_EQ(lossy("\xF0\x9F\x98"), r);
  EXPECT_EQ(lossy("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"), "\uD7FF\uE000\U0010FFFF");
}

TEST(Utf8, EveryCodePointIsWrittenAndReadBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    append_utf8(text, c);
    const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(find_invalid_utf8(text).has_value(), is_surrogate);
    if (is_surrogate) continue;
    ASSERT_EQ(code_point_at(text, 0).value, c);
    ASSERT_EQ(code_point_before(text, text.size()).n_bytes, text.size());
  }
}

TEST(Utf8, NamesTheByteWhereTheInvalidSequenceStarts) {
  EXPECT_EQ(find_invalid_utf8("aé😀"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\xFFz"), 2U);
  EXPECT_EQ(find_invalid_utf8("é\xE2\x82z"), 2U);
  EXPECT_EQ(find_invalid_utf8("abc\xF0\x9F"), 3U);
}

TEST(ByteFallbackDecoder, JoinsRunsOfBytes) {
  EXPECT_EQ(streamed(llama2(), {"▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁b", "<0x0A>"}),
            (Tokens{"a", "", "", "", "", "😀 b", "", "\n"}));
}

TEST(ByteFallbackDecoder, ReplacesEveryByteOfAnInvalidRun) {
  EXPECT_EQ(decoded(llama2(), {"x", "<0xC3>", "<0xA9>", "<0xFF>", "y"}), "x\uFFFD\uFFFD\uFFFDy");
  EXPECT_EQ(decoded(llama2(), {"<0xGG>", "<0x1>"}), "<0xGG><0x1>");
}

TEST(StripDecoder, TakesFromTheWholeTextAfterAFuse) {
  EXPECT_EQ(decoded(llama2(), {"▁▁a", "▁b"}), " a b");
  EXPECT_EQ(decoded(llama2(), {"▁", "▁", "a"}), " a");
  const Json ends = decoders(
      {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "x"}, {"start", 0}, {"stop", 2}}});
  EXPECT_EQ(decoded(ends, {"ax", "xbx", "x", "x"}), "axxbx");
  EXPECT_EQ(decoded(ends, {"x"}), "");
}

TEST(StripDecoder, TakesFromEveryTokenWithoutAFuse) {
  const Json strip{{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 1}};
  EXPECT_EQ(decoded(strip, {"__a__", "_b", "_", "__"}), "_a_b");
}

TEST(MetaspaceDecoder, DropsTheFirstMark) {
  const Json always{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  const Json never{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}};
  EXPECT_EQ(decoded(always, {"▁a", "▁b"}), "a b");
  EXPECT_EQ(decoded(never, {"▁a", "▁b"}), " a b");
}

TEST(BpeDecoder, PutsSpacesBetweenWords) {
  EXPECT_EQ(decoded({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"ab</w>", "c", "d</w>"}),
            "ab cd");
}

TEST(Decoder, JoinsBySpacesWithoutOne) {
  EXPECT_EQ(decoded(nullptr, {"a", "b", "c"}), "a b c");
  EXPECT_EQ(decoded(nullptr, {}), "");
  EXPECT_EQ(decoded(decoders({}), {"a", "b"}), "ab");
}

TEST(Decoder, NamesTypesItDoesNotHave) {
  for (const std::string type : {"WordPiece", "CTC"}) {
    testing::expect_error(ErrorCode::kUnsupported, {"decoder", type, "ByteFallback"}, [&] {
      decoded({{"type", type}}, {});
    });
  }
}

}  // namespace

using enum ErrorCode;
using testing::expect_error;

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

const Json kConfig = {{"tokenizer_class", "TikTokenTokenizer"}};

std::string line(const std::string& bytes, int rank) {
  std::string text(bytes.size() * 2 + 8, '\0');
  text.resize(static_cast<std::size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return text + ' ' + std::to_string(rank) + '\n';
}

// All bytes, and then these.
std::string ranks(const std::vector<std::string>& tokens) {
  std::string file;
  for (int byte = 0; byte < 256; ++byte)
    file += line(std::string(1, static_cast<char>(byte)), byte);
  int rank = 256;
  for (const std::string& token : tokens) file += line(token, rank++);
  return file;
}

Tokenizer tokenizer(const std::string& file, const Json& config = kConfig) {
  return Tokenizer::parse(tiktoken_document(file, config).dump(), "tiktoken.model");
}

TEST(Tiktoken, MergesTheLowestRankOfAnyPair) {
  // No list says that "ab" is of "a" and "b", nor that "abc" may be "a" and "bc".
  const Tokenizer two = tokenizer(ranks({"bc", "ab", "abc"}));
  EXPECT_EQ(two.encode("abc", false), (std::vector<std::int32_t>{258}));
  EXPECT_EQ(two.encode("abab", false), (std::vector<std::int32_t>{257, 257}));
  EXPECT_EQ(two.encode("xabcd", false), (std::vector<std::int32_t>{'x', 258, 'd'}));
}

TEST(Tiktoken, NamesControlTokensAfterTheRanks) {
  Json config = kConfig;
  config["added_tokens_decoder"]["256"] = {{"content", "[BOS]"}, {"special", true}};
  config["added_tokens_decoder"]["259"] = {{"content", "<|open|>"}, {"special", false}};
  config["added_tokens_decoder"]["513"] = {{"content", "beyond"}};
  const Tokenizer tokens = tokenizer(ranks({}), config);
  EXPECT_EQ(tokens.encode("[BOS]<|open|><|reserved_token_511|>", false),
            (std::vector<std::int32_t>{256, 259, 511}));
  EXPECT_EQ(tokens.decode(std::vector<std::int32_t>{256, 259, 'a'}, true), "<|open|>a");
  EXPECT_EQ(tokens.size(), 512U);
}

TEST(Tiktoken, RefusesWhatIsNoSuchFile) {
  const auto refuses = [&](ErrorCode code, const std::string& file, const std::string& fault) {
    expect_error(code, {fault}, [&] { tiktoken_document(file, kConfig); });
  };
  refuses(kCorrupt, "", "no token for byte 0");
  refuses(kCorrupt, "AA==\n", "line 1 is not a token and its rank");
  refuses(kCorrupt, "AA== x\n", "line 1 is without a rank");
  refuses(kCorrupt, "AA== 1 2\n", "line 1 is without a rank");
  refuses(kCorrupt, "AA== -1\n", "line 1 is without a rank");
  refuses(kCorrupt, "\nA!== 0\n", "line 2 does not begin with a token in base64");
  refuses(kCorrupt, "==== 0\n", "line 1 does not begin with a token in base64");
  refuses(kCorrupt, "A=A= 0\n", "line 1 does not begin with a token in base64");
  refuses(kCorrupt, "AA 0\n", "line 1 does not begin with a token in base64");
  refuses(kCorrupt, " 0\n", "line 1 does not begin with a token in base64");
  refuses(kCorrupt, "AA== 0\nAA== 1\n", "line 2 repeats a token");
  refuses(kUnsupported, ranks({}) + line("ab", 300), "has rank 300");
  expect_error(kCorrupt, {"gives id 5 to both"}, [&] { tokenizer(ranks({}) + line("ab", 5)); });
}

TEST(Tiktoken, RefusesConfigsOfOtherTokenizers) {
  expect_error(kUnsupported, {"tokenizer_class \"QWenTokenizer\""}, [] {
    tiktoken_document(ranks({}), {{"tokenizer_class", "QWenTokenizer"}});
  });
  for (const char* id : {"7", "x", "600", "-1"}) {
    Json config = kConfig;
    config["added_tokens_decoder"][id] = {{"content", "[BOS]"}};
    expect_error(kCorrupt, {"added_tokens_decoder", id},
                 [&] { tiktoken_document(ranks({}), config); });
  }
}

}  // namespace
}  // namespace ingot::inference
