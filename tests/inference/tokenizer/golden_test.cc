// Ids, tokens and texts by Hugging Face's tokenizers and tiktoken; see tests/golden/PROVENANCE.md.

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/tokenizer.h"
#include "tests/inference/tokenizer/byte_tokenizer.h"

namespace ingot::inference {

using Ids = std::vector<std::int32_t>;

namespace {

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

// Those without a normalizer: they must not change any text.
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
