#include <fstream>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/generate/sampling.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {
namespace {

using inference::GenerationConfig;

GenerationConfig read(const char* text, const char* model = R"({"model_type":"deepseek_v3"})") {
  const TempDir directory;
  if (text != nullptr) std::ofstream(directory / "generation_config.json") << text;
  formats::ModelConfig config;
  config.raw = formats::parse_json(model, "config.json");
  return inference::read_generation_config(directory.path(), config);
}

TEST(GenerationConfig, ReadsWhatTheFileSays) {
  const GenerationConfig config = read(
      R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,"eos_token_id":[1,7],"max_new_tokens":64})");
  EXPECT_TRUE(config.do_sample);
  EXPECT_EQ(config.sampling.temperature, 0.6F);
  EXPECT_EQ(config.sampling.top_p, 0.95F);
  EXPECT_EQ(config.sampling.top_k, 20U);
  EXPECT_EQ(config.eos, (std::vector<std::int32_t>{1, 7}));
  EXPECT_EQ(config.max_new_tokens, 64U);
}

TEST(GenerationConfig, EndTokenFallsBackToConfigJson) {
  EXPECT_EQ(read(nullptr, R"({"eos_token_id":5})").eos, (std::vector<std::int32_t>{5}));
  EXPECT_EQ(read(R"({"eos_token_id":null})", R"({"eos_token_id":[5,6]})").eos,
            (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(read(R"({"eos_token_id":2})", R"({"eos_token_id":5})").eos,
            (std::vector<std::int32_t>{2}));
}

TEST(GenerationConfig, WithoutAFileNothingIsSampled) {
  const GenerationConfig config = read(nullptr);
  EXPECT_FALSE(config.do_sample);
  EXPECT_TRUE(config.eos.empty());
  EXPECT_FALSE(config.max_new_tokens.has_value());
}

TEST(GenerationConfig, NamesTheKeyThatIsWrong) {
  for (const char* text : {R"({"temperature":"hot"})", R"({"temperature":-1})"}) {
    expect_error(ErrorCode::kCorrupt, {"generation_config.json", "temperature"},
                 [&] { read(text); });
  }
  expect_error(ErrorCode::kCorrupt, {"top_p"}, [] { read(R"({"top_p":1.5})"); });
  expect_error(ErrorCode::kCorrupt, {"eos_token_id"}, [] { read(R"({"eos_token_id":"x"})"); });
  expect_error(ErrorCode::kCorrupt, {"do_sample"}, [] { read(R"({"do_sample":1})"); });
  expect_error(ErrorCode::kCorrupt, {"config.json", "eos_token_id"},
               [] { read(nullptr, R"({"eos_token_id":-3})"); });
  expect_error(ErrorCode::kCorrupt, {"not a JSON object"}, [] { read("[]"); });
}

}  // namespace
}  // namespace ingot::testing
