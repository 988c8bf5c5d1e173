#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"glm_moe_dsa"};

// FP8 releases of GLM quantize the head of the multi-token prediction layer.
constexpr auto make_rules() {
  auto rules = concat_rules(kDeepseekV3Rules, kIndexerRules);
  for (TensorRule& rule : rules) rule.may_be_quantized = rule.role == Role::kMtpHead;
  return rules;
}

constexpr auto kRules = make_rules();

// GLM-5. `rms_norm_eps` and the rope base were not seen published and are the defaults that
// transformers gives this family; `index_head_dim` and `index_topk` were not either and are those
// of DeepSeek-V3.2. The released weights are BF16.
constexpr std::string_view kReference = R"({
  "architectures": ["GlmMoeDsaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "first_k_dense_replace": 3,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 6144,
  "index_head_dim": 128,
  "index_n_heads": 32,
  "index_topk": 2048,
  "indexer_rope_interleave": true,
  "initializer_range": 0.02,
  "intermediate_size": 12288,
  "kv_lora_rank": 512,
  "max_position_embeddings": 202752,
  "model_type": "glm_moe_dsa",
  "moe_intermediate_size": 2048,
  "moe_layer_freq": 1,
  "n_group": 1,
  "n_routed_experts": 256,
  "n_shared_experts": 1,
  "norm_topk_prob": true,
  "num_attention_heads": 64,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 78,
  "num_key_value_heads": 64,
  "num_nextn_predict_layers": 1,
  "q_lora_rank": 2048,
  "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-05,
  "rope_parameters": {
    "rope_theta": 1000000,
    "rope_type": "default"
  },
  "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid",
  "tie_word_embeddings": false,
  "topk_group": 1,
  "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "v_head_dim": 256,
  "vocab_size": 154880
})";

}  // namespace

const Family kGlmMoeDsa = {.name = "glm_moe_dsa",
                           .summary = "GLM-5: V3.2's shape, layers may share an indexer",
                           .model_types = kModelTypes,
                           .architecture = "GlmMoeDsaForCausalLM",
                           .rules = kRules,
                           .reference_config = kReference};

}  // namespace ingot::formats
