#include "inference/tokenizer/tokenizer.h"

#include "formats/json/json.h"
#include "inference/tokenizer/added_tokens.h"
#include "inference/tokenizer/characters.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// The document of a byte-level tokenizer without merges: ids 0 to 255 are the bytes.
inline formats::Json byte_tokenizer_json() {
  formats::Json vocab = formats::Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    inference::append_byte_characters(std::string(1, static_cast<char>(byte)), character);
    vocab[character] = byte;
  }
  return {
      {"version", "1.0"},
      {"added_tokens", formats::Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", formats::Json::array()}}}};
}

/// An entry of added_tokens.
inline formats::Json added_token(int id, const std::string& content, bool special = false) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace ingot::testing

namespace ingot::inference {

using formats::Json;
using Ids = std::vector<std::int32_t>;
using namespace ingot::testing;
using enum ErrorCode;

namespace {

Tokenizer parsed(const Json& document) {
  return Tokenizer::parse(document.dump(), "tok.json");
}

TEST(Tokenizer, NamesTheFirstByteThatIsNotUtf8) {
  const Tokenizer tokenizer = parsed(byte_tokenizer_json());
  expect_error(kInvalidArgument, {"not valid UTF-8 at byte 5"},
               [&] { (void)tokenizer.encode("h\u00E9ll\xC3", false); });
  expect_error(kInvalidArgument, {"at byte 0"},
               [&] { (void)tokenizer.encode("\xED\xA0\x80", false); });
}

TEST(Tokenizer, DecodesIdsOutsideTheVocabularyToNothing) {
  const Tokenizer tokenizer = parsed(byte_tokenizer_json());
  EXPECT_EQ(tokenizer.decode(Ids{'a', 256, -1, 2'000'000'000, -2'000'000'000, 'b'}, false), "ab");
  EXPECT_EQ(tokenizer.token(256), "");
  EXPECT_EQ(tokenizer.token(-1), "");
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
}

TEST(Tokenizer, CountsIdsUpToTheHighest) {
  Json document = byte_tokenizer_json();
  EXPECT_EQ(parsed(document).size(), 256U);
  document["added_tokens"] = Json::array({added_token(999, "<end>")});
  EXPECT_EQ(parsed(document).size(), 1000U);
  EXPECT_EQ(parsed(document).token(998), "");
  EXPECT_EQ(parsed(document).id_of("<end>"), 999);
}

TEST(Tokenizer, EncodesAnEmptyTextToItsTemplate) {
  Json document = byte_tokenizer_json();
  document["added_tokens"] = {added_token(300, "<s>", true), added_token(301, "</s>", true)};
  document["post_processor"] = {{"type", "RobertaProcessing"},
                                {"cls", {"<s>", 300}},
                                {"sep", {"</s>", 301}},
                                {"trim_offsets", true},
                                {"add_prefix_space", false}};
  const Tokenizer tokenizer = parsed(document);
  EXPECT_EQ(tokenizer.encode("", true), (Ids{300, 301}));
  EXPECT_EQ(tokenizer.encode("", false), Ids{});
  EXPECT_EQ(tokenizer.encode("a", true), (Ids{300, 'a', 301}));
}

TEST(Tokenizer, RunsPostProcessorsOneAfterTheOther) {
  Json document = byte_tokenizer_json();
  const auto around = [](int id, bool before) {
    const Json token{{"SpecialToken", {{"id", "t"}, {"type_id", 0}}}};
    const Json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    return Json{
        {"type", "TemplateProcessing"},
        {"single", before ? Json{token, text} : Json{text, token}},
        {"special_tokens", {{"t", {{"id", "t"}, {"ids", {id, id}}, {"tokens", {"t", "t"}}}}}}};
  };
  document["post_processor"] = {
      {"type", "Sequence"},
      {"processors", {{{"type", "ByteLevel"}}, around('x', true), around('y', false)}}};
  EXPECT_EQ(parsed(document).encode("a", true), (Ids{'x', 'x', 'a', 'y', 'y'}));
}

TEST(Tokenizer, RefusesPostProcessorsItCannotFollow) {
  const auto refuses = [](ErrorCode code, Json post_processor, const std::string& fragment) {
    Json document = byte_tokenizer_json();
    document["post_processor"] = std::move(post_processor);
    expect_error(code, {"tok.json", "post_processor", fragment}, [&] { parsed(document); });
  };
  const Json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json other{{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  const Json token{{"SpecialToken", {{"id", "t"}, {"type_id", 0}}}};
  const auto templated = [](Json single, int id) {
    return Json{{"type", "TemplateProcessing"},
                {"single", std::move(single)},
                {"special_tokens", {{"t", {{"ids", Json::array({id})}}}}}};
  };
  refuses(kUnsupported, {{"type", "Magic"}}, "\"Magic\"");
  refuses(kCorrupt, templated({token, text}, 300), "id 300, which no token has");
  refuses(kCorrupt, templated(Json::array({other}), 1), "asks for text \"B\"");
  refuses(kCorrupt, templated(Json::array({token}), 1), "without the text");
  refuses(kUnsupported, templated({text, text}, 1), "repeats the text");
  refuses(kCorrupt,
          {{"type", "TemplateProcessing"},
           {"single", Json::array({token})},
           {"special_tokens", Json::object()}},
          "no token \"t\"");
}

TEST(Tokenizer, NamesModelsItDoesNotHave) {
  for (const std::string type : {"WordPiece", "WordLevel"}) {
    Json document = byte_tokenizer_json();
    document["model"]["type"] = type;
    expect_error(kUnsupported, {"tok.json", "model", type, "BPE"}, [&] { parsed(document); });
  }
}

TEST(Tokenizer, ReadsModelsWithoutATypeAsBpe) {
  Json document = byte_tokenizer_json();
  document["model"].erase("type");
  EXPECT_EQ(parsed(document).encode("a", false), Ids{'a'});
}

TEST(Tokenizer, WorksWithoutOptionalComponents) {
  const Tokenizer tokenizer = parsed(
      {{"model",
        {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}});
  EXPECT_EQ(tokenizer.encode("abb a", false), (Ids{2, 1, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 1}, false), "ab b");
}

TEST(Tokenizer, RefusesDocumentsThatAreNone) {
  const auto refuses = [](const std::string& text, const std::string& fragment) {
    expect_error(kCorrupt, {"tok.json", fragment}, [&] { Tokenizer::parse(text, "tok.json"); });
  };
  refuses("", "JSON");
  refuses("[]", "is not a JSON object");
  refuses("{}", "'model'");
  refuses(R"({"model": {"type": "BPE"}})", "'model.vocab' is missing");
  refuses(R"({"model": {"type": "BPE", "vocab": {}}})", "'model.merges' is missing");
  refuses(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": {}})",
          "'added_tokens'");
  refuses(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": "NFC"})",
          "'normalizer' is not an object");
}

TEST(Tokenizer, OpensDirectoriesAndNamesWhatIsThereInstead) {
  const testing::TempDir directory;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(directory / name) << text;
  };
  expect_error(kNotFound, {"tokenizer.json", "--tokens works without one"},
               [&] { Tokenizer::open(directory.path()); });
  write("tokenizer.model", "x");
  expect_error(kUnsupported, {"tokenizer.model", "SentencePiece"},
               [&] { Tokenizer::open(directory.path()); });
  EXPECT_FALSE(Tokenizer::is_in(directory.path()));
  write("tiktoken.model", "x");
  EXPECT_TRUE(Tokenizer::is_in(directory.path()));
  expect_error(kNotFound, {"tokenizer_config.json"}, [&] { Tokenizer::open(directory.path()); });
  write("tokenizer_config.json", "{}");
  expect_error(kUnsupported, {"tiktoken.model", "tokenizer_class"},
               [&] { Tokenizer::open(directory.path()); });
  write("tokenizer.json", byte_tokenizer_json().dump());
  EXPECT_EQ(Tokenizer::open(directory.path()).encode("a", false), Ids{'a'});
  write("tokenizer.json", "{");
  expect_error(kCorrupt, {"tokenizer.json", "JSON"}, [&] { Tokenizer::open(directory.path()); });
}

TEST(Tokenizer, MovesWithAllItNeeds) {
  Tokenizer first = Tokenizer::open(std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32");
  const Ids before = first.encode("Hello, world!", false);
  Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("Hello, world!", false), before);
  EXPECT_EQ(second.decode(before, false), "Hello, world!");
}

TEST(Tokenizer, EncodesTheSameOnManyThreads) {
  const Tokenizer tokenizer =
      Tokenizer::open(std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32");
  std::string text;
  for (int i = 0; i < 300; ++i) text += "The quick brown fox 12345 日本語 <think> jumps.\n";
  const Ids expected = tokenizer.encode(text, true);
  std::vector<Ids> results(4);
  std::vector<std::jthread> threads;
  for (Ids& ids : results) threads.emplace_back([&] { ids = tokenizer.encode(text, true); });
  threads.clear();
  for (const Ids& ids : results) EXPECT_EQ(ids, expected);
}

// 128,000 tokens and merges, as in the models this is for.
TEST(Tokenizer, ReadsLargeVocabulariesAndEncodesLongTexts) {
  Json document = byte_tokenizer_json();
  auto& vocab = document["model"]["vocab"].get_ref<Json::object_t&>();
  Json merges = Json::array();
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  std::vector<std::string> level;
  for (const char c : letters) level.emplace_back(1, c);
  int next = 256;
  while (next < 128'000) {
    std::vector<std::string> longer;
    for (const std::string& token : level) {
      for (const char c : letters) {
        if (next == 128'000) break;
        vocab.emplace_back(token + c, next++);
        merges.push_back({token, std::string(1, c)});
        longer.push_back(token + c);
      }
    }
    level = std::move(longer);
  }
  document["model"]["merges"] = std::move(merges);
  document["added_tokens"] = Json::array({added_token(128'000, "<eot>", true)});
  const Tokenizer tokenizer = parsed(document);
  EXPECT_EQ(tokenizer.size(), 128'001U);
  std::string text;
  while (text.size() < 300'000) text += "some words and others, 12 of them\n";
  const Ids ids = tokenizer.encode(text, false);
  EXPECT_LT(3 * ids.size(), 2 * text.size());
  EXPECT_EQ(tokenizer.decode(ids, false), text);
}

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
  EXPECT_EQ(tokenizer.decode(Ids{'b', 'a'}, true), "b");
  EXPECT_EQ(tokenizer.size(), 256U);
}

TEST(AddedTokens, AreRefusedWhenContradictory) {
  const auto refuses = [](const std::vector<Json>& tokens, const std::string& fragment) {
    testing::expect_error(kCorrupt, {"tokenizer.json", "added_tokens[", fragment},
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
  testing::expect_error(kLimit, {"1025 bytes"},
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
    TextWork work;
    const auto found = finder.find(text, from, work);
    ASSERT_EQ(found.has_value(), best < texts.size());
    if (!found) continue;
    ASSERT_EQ(found->index, best);
    ASSERT_EQ(found->span.begin, begin - 1);
    ASSERT_EQ(found->span.end, begin - 1 + texts[best].size());
  }
}

// Ids, tokens and texts by Hugging Face's tokenizers and tiktoken; see tests/golden/PROVENANCE.md.

struct Family {
  std::string name, directory, golden;
};

const std::filesystem::path kRoot = INGOT_SOURCE_DIR;

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class TokenizerGolden : public ::testing::TestWithParam<Family> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::open(kRoot / GetParam().directory);
  const formats::Json cases_ =
      formats::read_json_file(kRoot / GetParam().golden, std::uint64_t{1} << 24);
};

TEST_P(TokenizerGolden, EncodesEveryTextToTheSameIds) {
  ASSERT_GE(cases_.size(), 30U);
  for (const auto& item : cases_) {
    const auto text = item.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_.encode(text, false), item.at("ids").get<Ids>()) << item.at("text");
    if (item.contains("ids_with_special")) {
      EXPECT_EQ(tokenizer_.encode(text, true), item.at("ids_with_special").get<Ids>())
          << item.at("text");
    }
  }
}

TEST_P(TokenizerGolden, SpellsEveryTokenTheSame) {
  for (const auto& item : cases_) {
    std::vector<std::string> tokens;
    for (const auto id : item.at("ids").get<Ids>()) {
      tokens.emplace_back(tokenizer_.token(id));
      EXPECT_EQ(tokenizer_.id_of(tokens.back()), id);
    }
    EXPECT_EQ(tokens, item.at("tokens").get<std::vector<std::string>>()) << item.at("text");
  }
}

TEST_P(TokenizerGolden, DecodesToTheSameText) {
  for (const auto& item : cases_) {
    const auto ids = item.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer_.decode(ids, false), item.at("decoded").get<std::string>());
    if (item.contains("decoded_skip_special")) {
      EXPECT_EQ(tokenizer_.decode(ids, true), item.at("decoded_skip_special").get<std::string>());
    }
  }
}

TEST_P(TokenizerGolden, StreamsWhatItDecodesInWholeCharacters) {
  for (const auto& item : cases_) {
    for (const bool skip_special : {false, true}) {
      const auto ids = item.at("ids").get<Ids>();
      StreamDecoder stream(tokenizer_, skip_special);
      std::string text;
      for (const auto id : ids) {
        const std::string part = stream.push(id);
        EXPECT_FALSE(find_invalid_utf8(part)) << item.at("text");
        text += part;
      }
      text += stream.finish();
      EXPECT_EQ(text, tokenizer_.decode(ids, skip_special));
      if (!skip_special) {
        EXPECT_EQ(text, item.at("decoded").get<std::string>());
      }
    }
  }
}

Family family(const std::string& name) {
  const std::string directory = "tests/golden/tokenizer/" + name;
  return {name, directory, directory + "/golden.json"};
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden,
                         ::testing::Values(family("deepseek_v2"), family("glm"), family("gpt2"),
                                           family("kimi"), family("llama2"), family("llama3"),
                                           family("qwen"), family("unigram"),
                                           family("unigram_bytes"),
                                           Family{"tiny_v32", "examples/tiny-v32",
                                                  "tests/golden/tiny-v32/tokenizer.json"}),
                         [](const auto& param_info) { return param_info.param.name; });

// Tokenizers without a normalizer, which must not change any text.
const std::vector<std::string> kExactTokenizers{
    "tests/golden/tokenizer/deepseek_v2", "tests/golden/tokenizer/glm",
    "tests/golden/tokenizer/gpt2", "tests/golden/tokenizer/llama3", "examples/tiny-v32"};

/// Code points of all kinds: mostly ASCII, the rest from everywhere, with white space, marks, runs.
std::string random_text(std::mt19937& random) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::string text;
  for (std::uint32_t n = below(80); n > 0; --n) {
    char32_t c = 0;
    switch (below(8)) {
      case 0:
        c = below(0x110000);
        break;
      case 1:
        c = below(0x3100);
        break;
      case 2:
        c = 0x4E00 + below(0x5200);
        break;
      case 3:
        c = U" \n\r\t\u3000\u0301"[below(6)];
        break;
      default:
        c = below(0x80);
    }
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    for (std::uint32_t repeats = below(6) == 0 ? below(9) : 1; repeats > 0; --repeats)
      append_utf8(text, c);
  }
  return text;
}

void expect_texts_come_back(std::uint32_t seed, int n_texts) {
  for (const std::string& directory : kExactTokenizers) {
    const Tokenizer tokenizer = Tokenizer::open(kRoot / directory);
    std::mt19937 random(seed);
    for (int i = 0; i < n_texts; ++i) {
      const std::string text = random_text(random);
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text) << directory;
    }
  }
}

TEST(RoundTrip, AnyUtf8ComesBackFromItsIds) {
  expect_texts_come_back(11, 400);
}

TEST(SlowRoundTrip, AnyUtf8ComesBackFromItsIds) {
  expect_texts_come_back(13, 5000);
}

TEST(RoundTrip, ComposedTextComesBackFromQwensIds) {
  const Tokenizer tokenizer = Tokenizer::open(kRoot / "tests/golden/tokenizer/qwen");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("cafe\u0301", false), false), "caf\u00E9");
  std::mt19937 random(12);
  for (int i = 0; i < 500; ++i) {
    // A text that was composed once does not change again.
    const std::string once = tokenizer.decode(tokenizer.encode(random_text(random), false), false);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(once, false), false), once);
  }
}

/// The bytes of a text that is replaced where it is not UTF-8, by trying which are valid: another
/// way to the answer than LossyUtf8.
std::string lossy(const std::string& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t length = 0;
    for (std::size_t n = 1; n <= 4 && i + n <= bytes.size() && length == 0; ++n)
      if (!find_invalid_utf8(bytes.substr(i, n))) length = n;
    if (length > 0) {
      text += bytes.substr(i, length);
      i += length;
      continue;
    }
    // The longest start of a valid sequence, at least one byte: some continuation completes it.
    std::size_t part = 1;
    const auto can_start = [](const std::string& start) {
      for (const char* rest :
           {"\x80", "\xBF", "\x80\x80", "\xBF\xBF", "\x80\x80\x80", "\xBF\x80\x80", "\x90\x80\x80",
            "\xA0\x80", "\x9F\x80", "\x8F\x80\x80"})
        if (!find_invalid_utf8(start + rest)) return true;
      return false;
    };
    while (i + part < bytes.size() && can_start(bytes.substr(i, part + 1))) ++part;
    text += "\uFFFD";
    i += part;
  }
  return text;
}

TEST(RoundTrip, AnyBytesStreamToWhatTheyDecodeTo) {
  const Tokenizer tokenizer =
      Tokenizer::parse(testing::byte_tokenizer_json().dump(), "tokenizer.json");
  std::mt19937 random(13);
  const std::string leads = "a\x80\x8F\x90\x9F\xA0\xBF\xC2\xE0\xE1\xED\xEF\xF0\xF1\xF4\xF5\xFF";
  for (int i = 0; i < 4000; ++i) {
    std::string bytes;
    for (auto n = random() % 24; n > 0; --n) {
      bytes += random() % 3 == 0 ? static_cast<char>(random() % 256)
                                 : leads[static_cast<std::size_t>(random() % leads.size())];
    }
    Ids ids;
    StreamDecoder stream(tokenizer, false);
    std::string text;
    for (const char byte : bytes) {
      ids.push_back(static_cast<unsigned char>(byte));
      const std::string part = stream.push(ids.back());
      ASSERT_FALSE(find_invalid_utf8(part));
      text += part;
    }
    text += stream.finish();
    ASSERT_EQ(text, tokenizer.decode(ids, false));
    ASSERT_EQ(text, lossy(bytes));
  }
}

TEST(RoundTrip, AnyIdsStreamToWhatTheyDecodeTo) {
  for (const std::string& directory : kExactTokenizers) {
    const Tokenizer tokenizer = Tokenizer::open(kRoot / directory);
    std::mt19937 random(14);
    for (int i = 0; i < 300; ++i) {
      Ids ids;
      StreamDecoder stream(tokenizer, true);
      std::string text;
      for (auto n = random() % 40; n > 0; --n) {
        ids.push_back(static_cast<std::int32_t>(random() % (tokenizer.size() + 20)) - 10);
        text += stream.push(ids.back());
      }
      text += stream.finish();
      ASSERT_EQ(text, tokenizer.decode(ids, true));
      ASSERT_FALSE(find_invalid_utf8(text));
    }
  }
}

}  // namespace

}  // namespace ingot::inference
