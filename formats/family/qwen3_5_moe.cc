#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 2> kModelTypes = {"qwen3_5_moe", "qwen3_5_moe_text"};

/// Grouped-query attention in every n-th layer; q_proj has a gate of the output beside each head.
constexpr std::array kFullAttentionRules = {
    linear_rule("model.layers.{layer}.self_attn.q_proj.weight", Role::kQProj,
                Scope::kFullAttentionLayer, {Dim::kGatedGqaQ, Dim::kHidden}, Cut::kColumn,
                Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.k_proj.weight", Role::kKProj,
                Scope::kFullAttentionLayer, {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.v_proj.weight", Role::kVProj,
                Scope::kFullAttentionLayer, {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.o_proj.weight", Role::kOProj,
                Scope::kFullAttentionLayer, {Dim::kHidden, Dim::kGqaQ}, Cut::kRow),
    norm_rule("model.layers.{layer}.self_attn.q_norm.weight", Role::kQNorm,
              Scope::kFullAttentionLayer, Dim::kHeadDim),
    norm_rule("model.layers.{layer}.self_attn.k_norm.weight", Role::kKNorm,
              Scope::kFullAttentionLayer, Dim::kHeadDim),
};

constexpr TensorRule state_rule(std::string_view pattern, std::array<Dim, 3> shape) {
  return plain_rule(pattern, Role::kLinearAttentionState, Scope::kLinearAttentionLayer, shape);
}

constexpr TensorRule convolution_rule(std::string_view pattern) {
  TensorRule rule = state_rule(pattern, {});
  rule.any_shape = true;
  return rule;
}

/// Gated delta net. Releases hold decays and norms in F32 or BF16.
constexpr std::array kLinearAttentionRules = {
    linear_rule("model.layers.{layer}.linear_attn.in_proj_qkv.weight", Role::kLinearAttentionIn,
                Scope::kLinearAttentionLayer, {Dim::kLinearQkv, Dim::kHidden}),
    linear_rule("model.layers.{layer}.linear_attn.in_proj_z.weight", Role::kLinearAttentionIn,
                Scope::kLinearAttentionLayer, {Dim::kLinearV, Dim::kHidden}),
    linear_rule("model.layers.{layer}.linear_attn.out_proj.weight", Role::kLinearAttentionOut,
                Scope::kLinearAttentionLayer, {Dim::kHidden, Dim::kLinearV}),
    state_rule("model.layers.{layer}.linear_attn.in_proj_a.weight",
               {Dim::kLinearHeads, Dim::kHidden}),
    state_rule("model.layers.{layer}.linear_attn.in_proj_b.weight",
               {Dim::kLinearHeads, Dim::kHidden}),
    state_rule("model.layers.{layer}.linear_attn.A_log", {Dim::kLinearHeads}),
    state_rule("model.layers.{layer}.linear_attn.dt_bias", {Dim::kLinearHeads}),
    state_rule("model.layers.{layer}.linear_attn.norm.weight", {Dim::kLinearValueDim}),
    convolution_rule("model.layers.{layer}.linear_attn.conv1d.weight"),
};

constexpr std::array kSharedRules = {
    linear_rule("model.layers.{layer}.mlp.shared_expert.gate_proj.weight", Role::kSharedGate,
                Scope::kMoeLayer, {Dim::kSharedIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp),
    linear_rule("model.layers.{layer}.mlp.shared_expert.up_proj.weight", Role::kSharedUp,
                Scope::kMoeLayer, {Dim::kSharedIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp),
    linear_rule("model.layers.{layer}.mlp.shared_expert.down_proj.weight", Role::kSharedDown,
                Scope::kMoeLayer, {Dim::kHidden, Dim::kSharedIntermediate}, Cut::kRow),
    plain_rule("model.layers.{layer}.mlp.shared_expert_gate.weight", Role::kSharedRouter,
               Scope::kMoeLayer, {Dim::kOne, Dim::kHidden}),
};

/// What the MTP layers have beside the tensors of a layer of full attention.
constexpr std::array kMtpRules = {
    plain_rule("mtp.fc.weight", Role::kMtpProj, Scope::kMtpLayer, {Dim::kHidden, Dim::kTwoHidden}),
    norm_rule("mtp.norm.weight", Role::kMtpHeadNorm, Scope::kMtpLayer, Dim::kHidden),
    norm_rule("mtp.pre_fc_norm_embedding.weight", Role::kMtpEmbeddingNorm, Scope::kMtpLayer,
              Dim::kHidden),
    norm_rule("mtp.pre_fc_norm_hidden.weight", Role::kMtpHiddenNorm, Scope::kMtpLayer,
              Dim::kHidden),
};

constexpr auto kRules = concat_rules(kModelRules, kLayerNormRules, kFullAttentionRules,
                                     kLinearAttentionRules, kExpertRules, kSharedRules, kMtpRules);

}  // namespace

const Family kQwen35Moe = {
    .name = "qwen3_5_moe",
    .summary = "Qwen3.5 MoE: linear attention in most layers, a gated shared expert, images",
    .model_types = kModelTypes,
    .architecture = "Qwen3_5MoeForConditionalGeneration",
    .rules = kRules,
    .mtp_layers = "mtp.layers.",
    .reference_config = ""};

}  // namespace ingot::formats
