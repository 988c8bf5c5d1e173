#include <gtest/gtest.h>

#include "check/rules/loader_rules.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {

using namespace check;

namespace {

using namespace ingot::testing;

constexpr const char* kFlash = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "expert_dtype": "fp4",
  "hidden_size": 4096, "num_hidden_layers": 43, "num_nextn_predict_layers": 1,
  "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
  "num_experts_per_tok": 6, "num_hash_layers": 3, "n_group": null, "topk_group": null,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
  "o_groups": 8, "o_lora_rank": 1024, "hc_mult": 4,
  "qk_rope_head_dim": 64, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
  "topk_method": "noaux_tc", "scoring_func": "sqrtsoftplus", "vocab_size": 129280,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";

using DeepseekV4 = InTempDir;

TEST_F(DeepseekV4, PromisesTheTensorsOfTheRelease) {
  const Family& family = *find_family("deepseek_v4");
  Json keys = parse_json(kFlash, "config.json");
  keys["compress_ratios"] = {0, 0};
  for (int layer = 2; layer < 43; ++layer)
    keys["compress_ratios"].push_back(layer % 2 == 0 ? 4 : 128);
  keys["compress_ratios"].push_back(0);
  const ModelConfig config = parse_model_config(keys.dump(), "config.json");
  EXPECT_EQ(family_of(config), &family);
  EXPECT_NO_THROW(require_widths(family, config));
  const NameGrammar grammar(family, config);
  std::uint64_t n_stored = 0;
  const auto count = [&](const std::string& name) {
    const auto match = grammar.match(name);
    ASSERT_TRUE(match) << name;
    n_stored += match->rule->fp8_by_default ? 2U : 1U;
  };
  for_each_expected(family, config, false, [&](const ExpectedTensor& tensor) {
    const auto match = grammar.match(tensor.name);
    ASSERT_TRUE(match) << tensor.name;
    ASSERT_EQ(match->rule, tensor.rule) << tensor.name;
    ASSERT_EQ(match->layer, tensor.layer) << tensor.name;
    count(tensor.name);
  });
  for (const char* leaf : {"norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"})
    count(std::string("mtp.0.") + leaf);
  // 41 layers with a compressor, 21 of them with an indexer; the first three route by a table.
  EXPECT_EQ(n_stored, 69'187U);
}

TEST_F(DeepseekV4, CountsMtpLayersFromNought) {
  const ModelConfig config = parse_model_config(kFlash, "config.json");
  const NameGrammar grammar(*find_family("deepseek_v4"), config);
  EXPECT_EQ(grammar.match("mtp.0.e_proj.weight")->layer, 43U);
  EXPECT_EQ(grammar.match("mtp.0.ffn.experts.255.w2.weight")->expert, 255U);
  for (const char* name :
       {"mtp.1.e_proj.weight", "mtp.00.e_proj.weight", "mtp.4294967295.e_proj.weight",
        "mtp.e_proj.weight", "mtp.{mtp}.e_proj.weight", "layers.43.attn_norm.weight",
        "layers.0.e_proj.weight", "model.layers.0.attn_norm.weight",
        "mtp.0.ffn.experts.256.w2.weight", "layers.0.mtp.0.e_proj.weight"}) {
    EXPECT_FALSE(grammar.match(name)) << name;
  }
}

TEST_F(DeepseekV4, DraftLayersOfDSparkFollowTheListOfRatios) {
  const ModelConfig config = parse_model_config(R"({"model_type": "deepseek_v4", "hidden_size": 64,
    "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "compress_ratios": [0, 4, 0, 0, 0],
    "dspark_block_size": 5, "dspark_markov_rank": 8, "n_routed_experts": 1})",
                                                "config.json");
  const NameGrammar grammar(*find_family("deepseek_v4"), config);
  EXPECT_EQ(grammar.match("mtp.2.markov_head.markov_w1.weight")->layer, 4U);
  EXPECT_TRUE(grammar.match("mtp.0.main_proj.weight"));
  EXPECT_FALSE(grammar.match("mtp.0.e_proj.weight"));
  EXPECT_FALSE(grammar.match("mtp.3.attn_norm.weight"));
}

TinyCheckpoint tiny_v4() {
  TinyCheckpoint tiny;
  tiny.config = R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 64,
    "num_hidden_layers": 1, "num_nextn_predict_layers": 0, "moe_intermediate_size": 32,
    "n_routed_experts": 1, "n_shared_experts": 1, "num_experts_per_tok": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 32,
    "o_groups": 2, "o_lora_rank": 12, "hc_mult": 2,
    "topk_method": "noaux_tc", "vocab_size": 8, "index_n_heads": 2, "index_head_dim": 8,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";
  auto& tensors = tiny.files["model.safetensors"];
  const auto fp8 = [&](const std::string& stem, std::uint64_t n, std::uint64_t k) {
    tensors.push_back({stem + ".weight", "F8_E4M3", {n, k}});
    tensors.push_back({stem + ".scale", "F8_E8M0", {1, 1}});
  };
  const auto fp4 = [&](const std::string& stem, std::uint64_t n, std::uint64_t k) {
    tensors.push_back({stem + ".weight", "I8", {n, k / 2}});
    tensors.push_back({stem + ".scale", "F8_E8M0", {n, k / 32}});
  };
  const std::string layer = "layers.0.";
  const auto mixing = [&](const std::string& stem, std::uint64_t rows, std::uint64_t scales) {
    tensors.push_back({stem + "_fn", "F32", {rows, 128}});
    tensors.push_back({stem + "_base", "F32", {rows}});
    tensors.push_back({stem + "_scale", "F32", {scales}});
  };
  mixing("hc_head", 2, 1);
  tensors.push_back({"embed.weight", "BF16", {8, 64}});
  tensors.push_back({"head.weight", "BF16", {8, 64}});
  tensors.push_back({"norm.weight", "BF16", {64}});
  for (const char* name : {"attn_norm.weight", "ffn_norm.weight"})
    tensors.push_back({layer + name, "BF16", {64}});
  mixing(layer + "hc_attn", 8, 3);
  mixing(layer + "hc_ffn", 8, 3);
  tensors.push_back({layer + "attn.attn_sink", "F32", {2}});
  fp8(layer + "attn.wq_a", 32, 64);
  fp8(layer + "attn.wq_b", 32, 32);
  fp8(layer + "attn.wkv", 16, 64);
  fp8(layer + "attn.wo_a", 24, 16);
  fp8(layer + "attn.wo_b", 64, 24);
  tensors.push_back({layer + "attn.q_norm.weight", "BF16", {32}});
  tensors.push_back({layer + "attn.kv_norm.weight", "BF16", {16}});
  tensors.push_back({layer + "ffn.gate.weight", "BF16", {1, 64}});
  tensors.push_back({layer + "ffn.gate.tid2eid", "I64", {8, 1}});
  fp4(layer + "ffn.experts.0.w1", 32, 64);
  fp4(layer + "ffn.experts.0.w3", 32, 64);
  fp4(layer + "ffn.experts.0.w2", 64, 32);
  fp8(layer + "ffn.shared_experts.w1", 32, 64);
  fp8(layer + "ffn.shared_experts.w3", 32, 64);
  fp8(layer + "ffn.shared_experts.w2", 64, 32);
  return tiny;
}

TEST_F(DeepseekV4, IsReadUnderItsNativeNames) {
  tiny_v4().write(dir_.path());
  const Checkpoint model = Checkpoint::open(dir_.path());
  EXPECT_EQ(model.family().name, "deepseek_v4");
  EXPECT_EQ(model.dialect().name, "deepseek");
  std::size_t n_fp8 = 0, n_fp4 = 0;
  for (const LogicalTensor& tensor : model.tensors()) {
    ASSERT_NE(tensor.rule, nullptr) << tensor.name;
    EXPECT_EQ(scheme_facts(tensor.encoding.scheme).quantized, tensor.rule->fp8_by_default);
    n_fp8 += tensor.encoding.scheme == SchemeId::kFp8Block ? 1 : 0;
    n_fp4 += tensor.encoding.scheme == SchemeId::kMxfp4 ? 1 : 0;
  }
  EXPECT_EQ(n_fp8, 8U);
  EXPECT_EQ(n_fp4, 3U);
}

TEST_F(DeepseekV4, HasNothingThatLoadersRefuse) {
  TinyCheckpoint tiny = tiny_v4();
  // 2^0 for every scale.
  for (auto& tensor : tiny.files["model.safetensors"]) {
    if (tensor.dtype != "F8_E8M0") continue;
    tensor.data = std::string(tensor.shape[0] * tensor.shape[1], '\x7f');
  }
  tiny.write(dir_.path());
  for (const Finding& finding : run_loader_rules(Checkpoint::open(dir_.path()), {.deep = true})) {
    EXPECT_NE(finding.severity, Severity::kError)
        << finding.rule << ": " << finding.tensor << " " << finding.message;
  }
}

TEST_F(DeepseekV4, ChecksTheShapesThatTheConfigGives) {
  TinyCheckpoint tiny = tiny_v4();
  ingot::testing::tensor_of(tiny, "layers.0.ffn.experts.0.w1.weight").shape = {32, 64};
  ingot::testing::tensor_of(tiny, "layers.0.ffn.experts.0.w1.scale").shape = {32, 4};
  tiny.write(dir_.path());
  expect_error(ErrorCode::kShapeMismatch, {"experts.0.w1", "[32, 128]", "[32, 64]"},
               [&] { Checkpoint::open(dir_.path()); });
}

TEST_F(DeepseekV4, IsSynthesizedWithAConfigOnly) {
  SynthOptions options;
  options.family = find_family("deepseek_v4");
  expect_error(ErrorCode::kInvalidArgument, {"deepseek_v4", "no config of its own", "--config"},
               [&] { static_cast<void>(synth_config_text(options)); });
}

}  // namespace
}  // namespace ingot::formats
