#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"deepseek_v2"};

// Softmax routing without a correction bias, no MTP; V2-Lite has no low-rank queries either, which
// the config says.
constexpr auto kRules = concat_rules(kModelRules, kLayerNormRules, kMlaRules, kRotaryRules,
                                     kDenseMlpRules, kExpertRules, kSharedExpertRules);

// V2-Lite.
constexpr std::string_view kReference = R"({
  "architectures": ["DeepseekV2ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 100000,
  "eos_token_id": 100001,
  "first_k_dense_replace": 1,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 10944,
  "kv_lora_rank": 512,
  "max_position_embeddings": 163840,
  "model_type": "deepseek_v2",
  "moe_intermediate_size": 1408,
  "moe_layer_freq": 1,
  "n_group": 1,
  "n_routed_experts": 64,
  "n_shared_experts": 2,
  "norm_topk_prob": false,
  "num_attention_heads": 16,
  "num_experts_per_tok": 6,
  "num_hidden_layers": 27,
  "num_key_value_heads": 16,
  "q_lora_rank": null,
  "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
    "type": "yarn"
  },
  "rope_theta": 10000,
  "routed_scaling_factor": 1.0,
  "scoring_func": "softmax",
  "tie_word_embeddings": false,
  "topk_group": 1,
  "topk_method": "greedy",
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "v_head_dim": 128,
  "vocab_size": 102400
})";

}  // namespace

const Family kDeepseekV2 = {
    .name = "deepseek_v2",
    .summary = "DeepSeek V2, V2-Lite: MLA with or without low-rank queries, softmax MoE",
    .model_types = kModelTypes,
    .architecture = "DeepseekV2ForCausalLM",
    .rules = kRules,
    .reference_config = kReference};

}  // namespace ingot::formats
