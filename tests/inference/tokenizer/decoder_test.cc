#include "inference/tokenizer/decoder.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using formats::Json;
using Tokens = std::vector<std::string>;

/// What every push returns, then what the finish returns.
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

Json sequence(const std::vector<Json>& steps) {
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// As published for the SentencePiece vocabularies of Llama 2 and Mistral.
Json llama2() {
  return sequence({{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
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
  // Table 3-8 of the Unicode standard, and the sequences beside the bounds of table 3-7.
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
  const Json ends = sequence(
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
  EXPECT_EQ(decoded(sequence({}), {"a", "b"}), "ab");
}

TEST(Decoder, NamesTypesItDoesNotHave) {
  for (const std::string type : {"WordPiece", "CTC"}) {
    testing::expect_error(ErrorCode::kUnsupported, {"decoder", type, "ByteFallback"}, [&] {
      decoded({{"type", type}}, {});
    });
  }
}

}  // namespace
}  // namespace ingot::inference
