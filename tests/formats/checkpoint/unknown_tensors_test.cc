#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/checkpoint/promised_tensors.h"
#include "formats/json/json.h"
#include "tests/formats/checkpoint/hostile_checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using enum ErrorCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A complete model with these tensors more.
TinyCheckpoint with(const std::vector<TinyTensor>& more) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  for (const TinyTensor& tensor : more) tiny.files["model.safetensors"].push_back(tensor);
  return tiny;
}

Checkpoint open(const TinyCheckpoint& tiny, const TempDir& dir, const OpenOptions& options = {}) {
  tiny.write(dir.path());
  return Checkpoint::open(dir.path(), options);
}

std::vector<std::string> remarks_under(const std::string& family, const Json& more) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  Json config = Json::parse(tiny.config);
  config.update(more);
  tiny.config = json_text(config);
  const TempDir dir;
  return open(tiny, dir, {.family = family}).remarks();
}

// As MiniCPM 3 under deepseek_v3, and CWM under llama.
TEST(ForcedFamily, IsWarnedOfByKeysThatItDoesNotRead) {
  const Json factors = {{"model_type", "minicpm3"}, {"scale_emb", 12}, {"scale_depth", 1.4}};
  EXPECT_THAT(remarks_under("deepseek_v3", factors),
              ElementsAre(::testing::AllOf(HasSubstr("scale_depth, scale_emb"),
                                           HasSubstr("compute another model"))));
  const Json windows = {{"model_type", "cwm"}, {"sliding_window", 8}};
  EXPECT_THAT(remarks_under("deepseek_v3", windows), ElementsAre(HasSubstr("sliding_window")));
}

TEST(ForcedFamily, IsNotWarnedOfByOtherKeys) {
  const Json idle = {{"model_type", "other"},     {"scale_emb", 1},    {"sliding_window", nullptr},
                     {"use_cache", true},         {"bos_token_id", 5}, {"attention_dropout", 0.1},
                     {"initializer_range", 0.02}, {"use_sinks", false}};
  EXPECT_THAT(remarks_under("deepseek_v3", idle), ::testing::IsEmpty());
  EXPECT_THAT(remarks_under("", {{"scale_emb", 12}}), ::testing::IsEmpty());
}

TEST(UnknownTensor, IsTakenAndReportedOncePerPattern) {
  const TempDir dir;
  const Checkpoint model = open(with({{"model.layers.0.extra.bias", "F32", {2}},
                                      {"model.layers.1.extra.bias", "F32", {2}},
                                      {"logit_scale_of_words", "F32", {1}}}),
                                dir);
  EXPECT_EQ(count_unknown(model), 3U);
  for (const LogicalTensor& tensor : model.tensors())
    EXPECT_EQ(role_of(tensor) == Role::kUnknown, tensor.is_unknown) << tensor.name;
  EXPECT_THAT(model.remarks(),
              ElementsAre(HasSubstr("logit_scale_of_words: 1 tensor that no row of family"),
                          HasSubstr("model.layers.*.extra.bias: 2 tensors that no row of family")));
}

TEST(UnknownTensor, IsAnErrorWhereATensorIsMissing) {
  TinyCheckpoint tiny = with({});
  const std::string name = "model.layers.1.mlp.experts.1.gate_proj.weight";
  tensor_of(tiny, name).name = "model.layers.1.mlp.experts.1.gate_porj.weight";
  refuse(tiny, kUnknownTensor, {"gate_porj", "not here: " + name});
}

TEST(UnknownTensor, IsAnErrorWhereItMisspellsAnOptionalOne) {
  const std::string rotary = "model.layers.0.self_attn.rotary_emb.inv_freq";
  refuse(with({{"model.layers.0.self_attn.rotary_emb.inv_freqs", "F32", {1}}}), kUnknownTensor,
         {"misspelt " + rotary});
  // Here the tensor that might be meant is present.
  const TempDir dir;
  EXPECT_EQ(
      count_unknown(open(with({{rotary, "F32", {1}},
                               {"model.layers.0.self_attn.rotary_emb.inv_freqs", "F32", {1}}}),
                         dir)),
      1U);
}

TEST(UnknownTensor, IsAnErrorWhereItMisspellsAPart) {
  const std::string scale = std::string(kUpStem) + ".input_scale";
  TinyCheckpoint tiny = tiny_fp8();
  tiny.files["model.safetensors"].push_back({std::string(kUpStem) + ".input_sclae", "F32", {1}});
  refuse(tiny, kUnknownTensor, {"misspelt " + scale});
  // A plain weight has no such part.
  const TempDir dir;
  EXPECT_EQ(count_unknown(open(with({{std::string(kUpStem) + ".input_sclae", "F32", {1}}}), dir)),
            1U);
}

TEST(UnknownTensor, IsOneFindingWhereItIsAnError) {
  const TempDir dir;
  ErrorList faults;
  const Checkpoint model =
      open(with({{"model.layers.0.mlp.side_proj.scale", "F32", {1}}, {"model.extra", "F32", {1}}}),
           dir, {.faults = &faults});
  EXPECT_EQ(faults.errors().size(), 1U);
  EXPECT_THAT(model.remarks(), ElementsAre(HasSubstr("model.extra")));
}

TEST(UnknownTensor, IsAnErrorWhereItEndsAsAScale) {
  refuse(with({{"model.layers.0.mlp.side_proj.scale", "F32", {1}}}), kUnknownTensor,
         {"side_proj.scale", "a scale without a weight"});
}

TEST(UnknownTensor, IsTakenByAPatternWhateverItMayBe) {
  const std::vector<Pattern> allowed = {Pattern("*.side_proj.scale")};
  const TempDir dir;
  const Checkpoint model = open(with({{"model.layers.0.mlp.side_proj.scale", "F32", {1}}}), dir,
                                {.allow_unknown = &allowed});
  EXPECT_EQ(count_unknown(model), 1U);
}

TEST(UnknownTensor, IsRefusedAsAMatrixOfAPartOfTheBytes) {
  const auto refused = [](const std::vector<std::uint64_t>& shape, const char* dtype = "F32") {
    const TempDir dir;
    const Checkpoint model = open(with({{"model.extra.weight", dtype, shape}}), dir);
    ErrorList faults;
    refuse_unknown_weights(
        model, [](const LogicalTensor&) { return false; }, faults);
    return !faults.empty();
  };
  EXPECT_TRUE(refused({64, 64}));
  EXPECT_FALSE(refused({4096})) << "no matrix";
  EXPECT_FALSE(refused({1, 1})) << "small";
  EXPECT_FALSE(refused({64, 64}, "BOOL")) << "a mask";
  EXPECT_FALSE(refused({64, 64}, "I64")) << "positions";
}

TEST(UnknownTensor, IsRefusedOncePerKindOfMatrices) {
  std::vector<TinyTensor> small;
  for (int i = 0; i < 1024; ++i)
    small.push_back({"model.extra." + std::to_string(i) + ".weight", "F32", {1, 1}});
  const auto faults_of = [](const std::vector<TinyTensor>& more) {
    const TempDir dir;
    const Checkpoint model = open(with(more), dir);
    ErrorList faults;
    refuse_unknown_weights(
        model, [](const LogicalTensor&) { return false; }, faults);
    return faults.errors().size();
  };
  EXPECT_EQ(faults_of(small), 1U);
  EXPECT_EQ(faults_of({small.front()}), 0U);
}

}  // namespace
}  // namespace ingot::formats
