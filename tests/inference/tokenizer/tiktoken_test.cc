#include "inference/tokenizer/tiktoken.h"

#include <string>

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "inference/tokenizer/tokenizer.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {

using enum ErrorCode;
using formats::Json;
using testing::expect_error;

namespace {

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
