#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/tokenizer.h"

// Ids, tokens and texts by Hugging Face's tokenizers; see tests/golden/PROVENANCE.md.

namespace ingot::inference {
namespace {

using Ids = std::vector<std::int32_t>;

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
                                           family("llama3"), family("qwen"),
                                           Family{"tiny_v32", "examples/tiny-v32",
                                                  "tests/golden/tiny-v32/tokenizer.json"}),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace ingot::inference
