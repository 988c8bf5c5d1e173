#include "inference/tokenizer/normalizer.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using formats::Json;

std::string normalized(const Json& json, const std::string& text) {
  return Normalizer::parse(&json).apply(text);
}

TEST(Normalizer, KnowsTheFourNormalForms) {
  // e and acute, the ligature fi, long s with dots above and below, a Hangul syllable.
  const std::string text = "e\u0301 \uFB01 \u1E9B\u0323 \u1112\u1161\u11AB";
  EXPECT_EQ(normalized({{"type", "NFC"}}, text), "\u00E9 \uFB01 \u1E9B\u0323 \uD55C");
  EXPECT_EQ(normalized({{"type", "NFD"}}, text),
            "e\u0301 \uFB01 \u017F\u0323\u0307 \u1112\u1161\u11AB");
  EXPECT_EQ(normalized({{"type", "NFKC"}}, text), "\u00E9 fi \u1E69 \uD55C");
  EXPECT_EQ(normalized({{"type", "NFKD"}}, text), "e\u0301 fi s\u0323\u0307 \u1112\u1161\u11AB");
}

TEST(Normalizer, KeepsNulBytes) {
  const std::string text("a\0e\u0301", 5);
  EXPECT_EQ(normalized({{"type", "NFC"}}, text), std::string("a\0\u00E9", 4));
}

TEST(Normalizer, LowersStripsAndPrepends) {
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "AÉΣİ"), "aéσi\u0307");
  EXPECT_EQ(
      normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, "\u3000 a b\n"),
      "a b");
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a "),
            " a");
  EXPECT_EQ(normalized({{"type", "Strip"}}, " \n"), "");
  EXPECT_EQ(normalized({{"type", "StripAccents"}}, "e\u0301\u20DDé"), "eé");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "▁"}}, "a"), "▁a");
  EXPECT_EQ(normalized({{"type", "ByteLevel"}}, "a é"), "aĠÃ©");
}

TEST(Normalizer, ReplacesLiteralsAndPatterns) {
  EXPECT_EQ(
      normalized({{"type", "Replace"}, {"pattern", {{"String", "."}}}, {"content", "$0"}}, "a.b."),
      "a$0b$0");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", ""}},
                       " a \n b"),
            "ab");
}

TEST(Normalizer, RunsASequenceInOrder) {
  const Json json{{"type", "Sequence"},
                  {"normalizers",
                   {{{"type", "NFD"}},
                    {{"type", "Sequence"}, {"normalizers", {{{"type", "StripAccents"}}}}},
                    {{"type", "Lowercase"}}}}};
  EXPECT_EQ(normalized(json, "ÉA"), "ea");
  EXPECT_EQ(normalized({{"type", "Sequence"}, {"normalizers", Json::array()}}, "ÉA"), "ÉA");
}

TEST(Normalizer, NamesTypesItDoesNotHave) {
  for (const std::string type : {"Precompiled", "Nmt", "BertNormalizer"}) {
    testing::expect_error(ErrorCode::kUnsupported, {"normalizer", type, "NFKC"}, [&] {
      normalized({{"type", type}}, "a");
    });
  }
}

TEST(Normalizer, BoundsWhatItMakesOfAText) {
  const Json json{
      {"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", std::string(100'000, 'x')}};
  testing::expect_error(ErrorCode::kLimit, {"too long"},
                        [&] { normalized(json, std::string(1000, 'a')); });
}

}  // namespace
}  // namespace ingot::inference
