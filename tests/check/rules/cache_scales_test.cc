#include "formats/family/cache_scales.h"

#include "tests/check/rules/rule_fixture.h"
#include "tests/support/test.h"

// Scales of a quantized cache of keys and values: names, and the findings of loader rules.

namespace ingot::testing {
namespace {

using check::Finding;
using formats::CacheSide;
using formats::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CacheScaleNames, AreKnownInEverySpelling) {
  const std::map<std::string, CacheSide> spellings = {
      {"k_scale", CacheSide::kKeys},
      {"v_scale", CacheSide::kValues},
      {"q_scale", CacheSide::kQueries},
      {"k_proj.k_scale", CacheSide::kKeys},
      {"v_proj.v_scale", CacheSide::kValues},
      {"k_proj.k_bias", CacheSide::kOffset},
      {"v_proj.v_bias", CacheSide::kOffset},
      {"kv_scale", CacheSide::kBoth},
      {"k_proj.output_scale", CacheSide::kKeys},
      {"v_proj.output_scale", CacheSide::kValues},
      {"q_proj.output_scale", CacheSide::kQueries},
      {"prob_output_scale", CacheSide::kProbabilities},
      {"qkv_proj.k_scale", CacheSide::kKeys},
      {"qkqkv_proj.v_scale", CacheSide::kValues},
      {"attn.k_scale", CacheSide::kKeys},
      {"q.scale", CacheSide::kQueries},
      {"k_cache.scale", CacheSide::kKeys},
      {"v_cache.scale", CacheSide::kValues},
      {"kv_a_proj_with_mqa.k_scale", CacheSide::kBoth},
  };
  for (const auto& [spelling, side] : spellings) {
    for (const std::string block : {"model.layers.3.self_attn", "backbone.layers.9.mixer"}) {
      const std::string whole = block + "." + spelling;
      const auto name = formats::cache_scale_name(whole);
      ASSERT_TRUE(name) << whole;
      EXPECT_EQ(name->block, block);
      EXPECT_EQ(name->side, side) << whole;
    }
  }
}

TEST(CacheScaleNames, AreNotThoseOfWeightsAndTheirScales) {
  for (const char* name :
       {"model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.k_proj.weight_scale",
        "model.layers.0.self_attn.k_proj.input_scale", "model.layers.0.self_attn.k_proj.bias",
        "layers.0.attn.wq_b.scale", "k_scale"})
    EXPECT_FALSE(formats::cache_scale_name(name)) << name;
}

constexpr std::size_t kLayers = 2;  // without the MTP layer

std::string attention(std::size_t layer) {
  return fmt::format("model.layers.{}.self_attn.", layer);
}

/// A sound FP8 model with a pair in each main layer, and the config's word for it.
EditableCheckpoint with_scales() {
  EditableCheckpoint checkpoint = make_fp8();
  quantization(checkpoint)["kv_cache_scheme"] = "static";
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    checkpoint.put_floats(attention(layer) + "k_proj.k_scale", {}, 0.03125F);
    checkpoint.put_floats(attention(layer) + "v_proj.v_scale", {1}, 0.0078125F);
  }
  return checkpoint;
}

Finding only_finding(const EditableCheckpoint& checkpoint) {
  return only(run_rules(checkpoint, {}));
}

TEST(CacheScales, AreQuietWhereSound) {
  EXPECT_THAT(run_rules(with_scales(), {}), IsEmpty());
}

TEST(CacheScales, OfAnUnderstoodPairInAnotherSpellingAreQuiet) {
  EditableCheckpoint old = make_fp8();
  quantization(old)["kv_cache_scheme"] = "static";
  for (std::size_t layer = 0; layer < kLayers; ++layer)
    old.put_floats(attention(layer) + "kv_scale", {1}, 0.5F);
  EXPECT_THAT(run_rules(old, {}), IsEmpty());
}

TEST(CacheScales, MustBeFiniteAndAboveZero) {
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    EditableCheckpoint checkpoint = with_scales();
    checkpoint.put_floats(attention(1) + "v_proj.v_scale", {}, bad);
    const Finding finding = only_finding(checkpoint);
    EXPECT_EQ(finding.rule, "quantized.cache-scale-values");
    EXPECT_EQ(finding.tensor, attention(1) + "v_proj.v_scale");
    EXPECT_THAT(finding.message, HasSubstr(fmt::format("is {}:", bad)));
  }
}

TEST(CacheScales, OfTwoSpellingsMustBeEqual) {
  EditableCheckpoint checkpoint = with_scales();
  checkpoint.put_floats(attention(0) + "attn.k_scale", {}, 0.03125F);
  EXPECT_THAT(run_rules(checkpoint, {}), IsEmpty());
  checkpoint.put_floats(attention(0) + "attn.k_scale", {}, 0.0625F);
  const Finding finding = only_finding(checkpoint);
  EXPECT_EQ(finding.rule, "quantized.cache-scale-values");
  EXPECT_THAT(finding.message, AllOf(HasSubstr(attention(0) + "attn.k_scale"),
                                     HasSubstr(attention(0) + "k_proj.k_scale")));
}

TEST(CacheScales, OfValuesNeedOneOfKeys) {
  EditableCheckpoint checkpoint = with_scales();
  checkpoint.tensors.erase(attention(0) + "k_proj.k_scale");
  const Finding finding = only_finding(checkpoint);
  EXPECT_EQ(finding.rule, "quantized.cache-scale-form");
  EXPECT_EQ(finding.tensor, attention(0) + "v_proj.v_scale");
}

TEST(CacheScales, AreOneNumberOrOnePerHead) {
  EditableCheckpoint checkpoint = with_scales();
  const auto heads = checkpoint.config.at("num_key_value_heads").get<std::uint64_t>();
  checkpoint.put_floats(attention(0) + "k_proj.k_scale", {heads, 1, 1}, 0.5F);
  EXPECT_THAT(run_rules(checkpoint, {}), IsEmpty());
  checkpoint.put_floats(attention(0) + "k_proj.k_scale", {heads + 1}, 0.5F);
  const Finding finding = only_finding(checkpoint);
  EXPECT_EQ(finding.rule, "quantized.cache-scale-form");
  EXPECT_EQ(finding.code, ErrorCode::kShapeMismatch);
}

TEST(CacheScales, ThatALayerLacksAreMissed) {
  EditableCheckpoint checkpoint = with_scales();
  checkpoint.tensors.erase(attention(1) + "k_proj.k_scale");
  checkpoint.tensors.erase(attention(1) + "v_proj.v_scale");
  const Finding finding = only_finding(checkpoint);
  EXPECT_EQ(finding.rule, "quantized.cache-scale-use");
  EXPECT_THAT(finding.message, AllOf(HasSubstr("kv_cache_scheme"), HasSubstr("1.0 there: 1")));
}

TEST(CacheScales, OfOneLayerAreFineWhereTheConfigListsIt) {
  EditableCheckpoint checkpoint = with_scales();
  checkpoint.tensors.erase(attention(1) + "k_proj.k_scale");
  checkpoint.tensors.erase(attention(1) + "v_proj.v_scale");
  quantization(checkpoint)["kv_cache_quantized_layers"] = {
      {"model.layers.0.self_attn", {{"quant_algo", "FP8"}}}};
  EXPECT_THAT(run_rules(checkpoint, {}), IsEmpty());
}

TEST(CacheScales, HaveOffsetsThatFewReadersApply) {
  EditableCheckpoint checkpoint = with_scales();
  checkpoint.put_zeros(attention(0) + "k_proj.k_bias", DType::kBf16, {1, 2, 1, 8});
  const Finding finding = only_finding(checkpoint);
  EXPECT_EQ(finding.rule, "quantized.cache-scale-use");
  EXPECT_THAT(finding.message, HasSubstr("TensorRT-LLM"));
}

}  // namespace
}  // namespace ingot::testing
