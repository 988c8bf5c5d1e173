#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen3_moe"};

/// Grouped-query attention with a norm per head.
constexpr std::array kAttentionRules = {
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_proj.weight",
               .role = Role::kQProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaQ, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.k_proj.weight",
               .role = Role::kKProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaKv, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.v_proj.weight",
               .role = Role::kVProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaKv, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.o_proj.weight",
               .role = Role::kOProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kHidden, Dim::kGqaQ},
               .fp8_by_default = true,
               .cut = Cut::kRow},
    norm_rule("model.layers.{layer}.self_attn.q_norm.weight", Role::kQNorm, Scope::kLayer,
              Dim::kHeadDim),
    norm_rule("model.layers.{layer}.self_attn.k_norm.weight", Role::kKNorm, Scope::kLayer,
              Dim::kHeadDim),
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaQ},
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv,
               .presence = Presence::kOptional},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.k_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaKv},
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv,
               .presence = Presence::kOptional},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.v_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kGqaKv},
               .cut = Cut::kColumn,
               .fuse = Fuse::kQkv,
               .presence = Presence::kOptional},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.o_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kHidden},
               .presence = Presence::kOptional},
};

// Dense MLPs stand in the layers that `mlp_only_layers` names. vLLM's class, unlike its DeepSeek
// ones, gives the router the quantization config.
constexpr auto make_rules() {
  auto rules = concat_rules(kModelRules, kLayerNormRules, kAttentionRules, kRotaryRules,
                            kDenseMlpRules, kExpertRules);
  for (TensorRule& rule : rules) {
    if (rule.role == Role::kRouter) rule.silence = Silence::kQuantized;
  }
  return rules;
}

constexpr auto kRules = make_rules();

// Qwen3-30B-A3B.
constexpr std::string_view kReference = R"({
  "architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "decoder_sparse_step": 1,
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 6144,
  "max_position_embeddings": 40960,
  "mlp_only_layers": [],
  "model_type": "qwen3_moe",
  "moe_intermediate_size": 768,
  "norm_topk_prob": true,
  "num_attention_heads": 32,
  "num_experts": 128,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 48,
  "num_key_value_heads": 4,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001,
  "sliding_window": null,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "use_sliding_window": false,
  "vocab_size": 151936
})";

}  // namespace

const Family kQwen3Moe = {
    .name = "qwen3_moe",
    .summary = "Qwen3 MoE: grouped-query attention, softmax MoE without shared experts",
    .model_types = kModelTypes,
    .architecture = "Qwen3MoeForCausalLM",
    .rules = kRules,
    .reference_config = kReference};

}  // namespace ingot::formats
