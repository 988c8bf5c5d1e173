#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen3_moe"};

/// Grouped-query attention with a norm per head.
constexpr std::array kAttentionRules = {
    linear_rule("model.layers.{layer}.self_attn.q_proj.weight", Role::kQProj, Scope::kLayer,
                {Dim::kGqaQ, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.k_proj.weight", Role::kKProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.v_proj.weight", Role::kVProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.o_proj.weight", Role::kOProj, Scope::kLayer,
                {Dim::kHidden, Dim::kGqaQ}, Cut::kRow),
    norm_rule("model.layers.{layer}.self_attn.q_norm.weight", Role::kQNorm, Scope::kLayer,
              Dim::kHeadDim),
    norm_rule("model.layers.{layer}.self_attn.k_norm.weight", Role::kKNorm, Scope::kLayer,
              Dim::kHeadDim),
    plain_rule("model.layers.{layer}.self_attn.q_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaQ}, Cut::kColumn, Fuse::kQkv, Presence::kOptional),
    plain_rule("model.layers.{layer}.self_attn.k_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaKv}, Cut::kColumn, Fuse::kQkv, Presence::kOptional),
    plain_rule("model.layers.{layer}.self_attn.v_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaKv}, Cut::kColumn, Fuse::kQkv, Presence::kOptional),
    plain_rule("model.layers.{layer}.self_attn.o_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kHidden}, Presence::kOptional),
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

}  // namespace

// The config is that of Qwen3-30B-A3B.
const Family kQwen3Moe = {
    .name = "qwen3_moe",
    .summary = "Qwen3 MoE: grouped-query attention, softmax MoE without shared experts",
    .model_types = kModelTypes,
    .architecture = "Qwen3MoeForCausalLM",
    .rules = kRules,
    .reference_config = kQwen3MoeConfig};

}  // namespace ingot::formats
