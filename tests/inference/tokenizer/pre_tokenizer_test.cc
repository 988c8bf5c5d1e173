#include "inference/tokenizer/pre_tokenizer.h"

#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using Pieces = std::vector<std::string>;
using Texts = std::vector<std::string>;
using enum ErrorCode;
using formats::Json;

std::string normalized(const Json& json, const std::string& text) {
  TextWork work;
  work.give(std::string_view(text).size());
  return Normalizer::parse(&json).apply(text, work);
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
    testing::expect_error(kUnsupported, {"normalizer", type, "NFKC"}, [&] {
      normalized({{"type", type}}, "a");
    });
  }
}

TEST(Normalizer, BoundsWhatItMakesOfAText) {
  const Json json{
      {"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", std::string(100'000, 'x')}};
  testing::expect_error(kLimit, {"too long"}, [&] { normalized(json, std::string(1000, 'a')); });
}

TEST(Normalizer, MakesNoLongTextOfAShortOne) {
  const Json longer{
      {"type", "Replace"}, {"pattern", {{"Regex", "^"}}}, {"content", std::string(5000, 'a')}};
  testing::expect_error(kLimit, {"too long"}, [&] { normalized(longer, "hi"); });
  const Json doubled{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json often{{"type", "Sequence"}, {"normalizers", std::vector<Json>(256, doubled)}};
  testing::expect_error(kLimit, {"too long"}, [&] { normalized(often, "a"); });
}

TEST(Normalizer, SortsNoEndlessRunOfAccents) {
  std::string text = "a";
  for (int i = 0; i < 1025; ++i) text += "\u0301";
  testing::expect_error(kLimit, {"accents"}, [&] { normalized({{"type", "NFD"}}, text); });
}

Pieces pieces(const Json& json, std::string_view text, bool is_start = true) {
  TextWork work;
  work.give(text.size());
  const SplitText split = PreTokenizer::parse(&json).apply(std::string(text), is_start, work);
  Pieces result;
  for (const Span& piece : split.pieces)
    result.push_back(split.text.substr(piece.begin, piece.end - piece.begin));
  return result;
}

Json split(const std::string& regex, const std::string& behavior = "Isolated",
           bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", behavior},
          {"invert", invert}};
}

Json sequence(std::vector<Json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

// The three passes of DeepSeek V3, without the map of bytes.
Json deepseek_v3() {
  return sequence({
      split(R"(\p{N}{1,3})"),
      split("[一-龥\u3040-\u309F\u30A0-\u30FF]+"),
      split(
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
          "\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
  });
}

TEST(DeepSeekV3Splits, CutDigitsInThrees) {
  EXPECT_EQ(pieces(deepseek_v3(), "12345"), (Pieces{"123", "45"}));
  EXPECT_EQ(pieces(deepseek_v3(), "a½²Ⅷ٣"), (Pieces{"a", "½²Ⅷ", "٣"}));
}

TEST(DeepSeekV3Splits, SeeOnlyPiecesOfThePassBefore) {
  EXPECT_EQ(pieces(deepseek_v3(), "a  1"), (Pieces{"a", "  ", "1"}));
  EXPECT_EQ(pieces(deepseek_v3(), "a  b"), (Pieces{"a", " ", " b"}));
}

TEST(DeepSeekV3Splits, LeaveTheSpaceBeforeDigitsAndKanaAlone) {
  EXPECT_EQ(pieces(deepseek_v3(), " 42"), (Pieces{" ", "42"}));
  EXPECT_EQ(pieces(deepseek_v3(), "x 中文"), (Pieces{"x", " ", "中文"}));
}

TEST(DeepSeekV3Splits, CutPunctuationOutOfKana) {
  EXPECT_EQ(pieces(deepseek_v3(), "カタ・カナ"), (Pieces{"カタ", "・", "カナ"}));
}

TEST(DeepSeekV3Splits, TakeTheFirstAlternative) {
  EXPECT_EQ(pieces(deepseek_v3(), "it's (foo) (bar"),
            (Pieces{"it", "'s", " (", "foo", ")", " (", "bar"}));
  EXPECT_EQ(pieces(deepseek_v3(), "x(foo"), (Pieces{"x", "(foo"}));
}

TEST(DeepSeekV3Splits, EndRunsOfLinesAtTheLastOne) {
  EXPECT_EQ(pieces(deepseek_v3(), "a \r\n \n  b"), (Pieces{"a", " \r\n \n", " ", " b"}));
}

// The cased letters that the published file of DeepSeek-V2 lists, as code points; its golden has
// \p{L} in their place.
constexpr std::string_view kV2Letters =
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF "
    "0370-0373 0376 0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 "
    "048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 "
    "2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 "
    "FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
    "118A0-118DF 1E900-1E943";

// The file has the characters themselves, not their numbers.
std::string v2_letter_class() {
  std::string result = "[";
  std::istringstream numbers{std::string(kV2Letters)};
  for (std::string range; numbers >> range;) {
    const std::size_t dash = range.find('-');
    append_utf8(result, static_cast<char32_t>(std::stoul(range.substr(0, dash), nullptr, 16)));
    if (dash == std::string::npos) continue;
    result += '-';
    append_utf8(result, static_cast<char32_t>(std::stoul(range.substr(dash + 1), nullptr, 16)));
  }
  return result + "]";
}

Json deepseek_v2() {
  return sequence({split("[\r\n]"),
                   split("\\s?" + v2_letter_class() + "+"),
                   split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                   split("\\s+$"),
                   split("[一-龥ࠀ-一가-\uD7FF]+"),
                   {{"type", "Digits"}, {"individual_digits", true}}});
}

TEST(DeepSeekV2Splits, AttachOneSpaceAndIsolateLinesAndDigits) {
  EXPECT_EQ(pieces(deepseek_v2(), "Hi,  you 12!\n\nこれは。  "),
            (Pieces{"Hi", ",", " ", " you", " ", "1", "2", "!", "\n", "\n", "これは", "。", "  "}));
}

TEST(DeepSeekV2Splits, TakeTheListedLettersOnly) {
  // The range from ':' to '~' holds the ASCII letters, so the third pass cuts German words.
  EXPECT_EQ(pieces(deepseek_v2(), "Straße Привет ǅ ﬁ 𐐀𐐨ªñ עב"),
            (Pieces{"Stra", "ß", "e", " Привет", " ǅ", " ﬁ", " 𐐀𐐨", "ª", "ñ", " עב"}));
}

TEST(KimiSplit, IntersectsClasses) {
  const Json kimi = split(
      R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  EXPECT_EQ(pieces(kimi, "Hello漢字ok It's HTTPServer2024!\n"),
            (Pieces{"Hello", "漢字", "ok", " It's", " HTTPServer", "202", "4", "!\n"}));
}

TEST(ByteLevelSplit, UsesTheWordsOfGpt2) {
  const Json json{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_EQ(pieces(json, "I'll go  now\n"), (Pieces{"I", "'ll", "Ġgo", "Ġ", "Ġnow", "Ċ"}));
}

TEST(ByteLevelSplit, PutsASpaceBeforeByDefault) {
  EXPECT_EQ(pieces({{"type", "ByteLevel"}, {"use_regex", false}}, "a b"), Pieces{"ĠaĠb"});
  EXPECT_EQ(pieces({{"type", "ByteLevel"}, {"use_regex", false}}, " a"), Pieces{"Ġa"});
}

TEST(SplitBehaviors, DoWhatTheirNamesSay) {
  const auto with = [](const std::string& behavior, bool invert = false) {
    return pieces(split("-", behavior, invert), "the-final--countdown");
  };
  EXPECT_EQ(with("Isolated"), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(with("Removed"), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(with("MergedWithPrevious"), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(with("MergedWithNext"), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(with("Contiguous"), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(with("Removed", true), (Pieces{"-", "-", "-"}));
}

TEST(SplitBehaviors, HoldForLiteralPatterns) {
  const Json json{{"type", "Split"},
                  {"pattern", {{"String", "a.c"}}},
                  {"behavior", "Removed"},
                  {"invert", false}};
  EXPECT_EQ(pieces(json, "abca.cx"), (Pieces{"abc", "x"}));
}

TEST(Digits, AreSplitSinglyOrInRuns) {
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12½"),
            (Pieces{"a", "1", "2", "½"}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", false}}, "12a12½b"),
            (Pieces{"12", "a", "12½", "b"}));
}

TEST(Punctuation, IsAsciiOrUnicode) {
  EXPECT_EQ(pieces({{"type", "Punctuation"}}, "a$b…c€d^"),
            (Pieces{"a", "$", "b", "…", "c€d", "^"}));
}

TEST(Whitespace, IsDropped) {
  EXPECT_EQ(pieces({{"type", "Whitespace"}}, " Hi, you!? "), (Pieces{"Hi", ",", "you", "!?"}));
  EXPECT_EQ(pieces({{"type", "WhitespaceSplit"}}, " Hi,\u3000you!? "), (Pieces{"Hi,", "you!?"}));
}

TEST(Metaspace, MarksSpacesAndSplitsBeforeThem) {
  const auto with = [](const std::string& scheme, bool is_start) {
    return pieces({{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}}, "a b",
                  is_start);
  };
  EXPECT_EQ(with("always", false), (Pieces{"▁a", "▁b"}));
  EXPECT_EQ(with("first", true), (Pieces{"▁a", "▁b"}));
  EXPECT_EQ(with("first", false), (Pieces{"a", "▁b"}));
  EXPECT_EQ(with("never", true), (Pieces{"a", "▁b"}));
  EXPECT_EQ(pieces({{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}}, " a  b"),
            Pieces{"▁a▁▁b"});
  EXPECT_EQ(
      pieces({{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", false}}, "a b"),
      (Pieces{"a", "▁b"}));
}

TEST(PreTokenizer, NamesTypesItDoesNotHave) {
  testing::expect_error(kUnsupported, {"pre_tokenizer", "UnicodeScripts", "ByteLevel"}, [] {
    pieces({{"type", "UnicodeScripts"}}, "a");
  });
  testing::expect_error(kUnsupported, {"pre_tokenizer[1]", "\"Bert\""}, [] {
    pieces(sequence({{{"type", "Digits"}}, {{"type", "Bert"}}}), "a");
  });
  testing::expect_error(kUnsupported, {"behavior", "Odd"}, [] { pieces(split("a", "Odd"), "a"); });
  testing::expect_error(kCorrupt, {"pre_tokenizer", "'pre_tokenizer.pattern' is missing"}, [] {
    pieces({{"type", "Split"}, {"behavior", "Isolated"}}, "a");
  });
}

TEST(PreTokenizer, BoundsStepsAndLengthOfText) {
  const Json step{{"type", "ByteLevel"}, {"use_regex", false}};
  testing::expect_error(kLimit, {"more than 256 steps"},
                        [&] { pieces(sequence(std::vector<Json>(257, step)), "a"); });
  // Two bytes become four, more than 64 MiB of them.
  std::string megabyte, text;
  while (megabyte.size() < std::size_t{1} << 20) megabyte += "\u0301";
  for (int i = 0; i < 33; ++i) text += megabyte;
  testing::expect_error(kLimit, {"too long"}, [&] { pieces(step, text); });
}

Texts found(const SplitPattern& pattern, std::string_view text) {
  std::vector<Span> matches;
  TextWork work;
  pattern.find_all(text, work, matches);
  Texts texts;
  for (const Span& match : matches)
    texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

Texts found(std::string_view pattern, std::string_view text) {
  return found(SplitPattern::regex(pattern), text);
}

TEST(SplitPattern, EndsSearchesThatTogetherTakeTooLong) {
  // Each search is short, and looks at the whole rest of the text.
  const SplitPattern pattern = SplitPattern::regex("a(?=a*c)|a");
  const std::string text(200'000, 'a');
  TextWork work({.seconds = 0.05, .seconds_per_byte = 0});
  std::vector<Span> matches;
  testing::expect_error(kLimit, {"more than 0.05 s"},
                        [&] { pattern.find_all(text, work, matches); });
}

TEST(SplitPattern, EndsWhereAStopIsAskedFor) {
  int n_asked = 0;
  const StopScope stop([&] { return ++n_asked == 3; }, "a text was read");
  testing::expect_error(kInterrupted, {"stopped while a text was read"},
                        [&] { found("a", std::string(1000, 'a')); });
  EXPECT_EQ(n_asked, 3);
}

struct SplitCase {
  std::string_view claim, pattern, text;
  Texts found;
};

// The texts by \w are those that Hugging Face's tokenizers 0.23.3 return.
const std::vector<SplitCase> kSplitCases{
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
  for (const SplitCase& row : kSplitCases)
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
