#pragma once

#include <array>

#include "formats/family/decoder_rules.h"

// Rows of multi-head latent attention, of the sparse-attention indexer and of the multi-token
// prediction layers, and the whole of a DeepSeek-V3 decoder made of them.

namespace ingot::formats {

inline constexpr std::array kMlaRules = {
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_a_proj.weight",
               .role = Role::kQaProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kQLora, Dim::kHidden},
               .fp8_by_default = true,
               .fuse = Fuse::kQaKva,
               .presence = Presence::kWithQLora},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_a_layernorm.weight",
               .role = Role::kQaNorm,
               .scope = Scope::kLayer,
               .shape = {Dim::kQLora},
               .presence = Presence::kWithQLora},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_b_proj.weight",
               .role = Role::kQbProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kMlaQ, Dim::kQLora},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .presence = Presence::kWithQLora},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_proj.weight",
               .role = Role::kQProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kMlaQ, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .presence = Presence::kWithoutQLora},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight",
               .role = Role::kKvaProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kKvA, Dim::kHidden},
               .fp8_by_default = true,
               .fuse = Fuse::kQaKva},
    norm_rule("model.layers.{layer}.self_attn.kv_a_layernorm.weight", Role::kKvaNorm, Scope::kLayer,
              Dim::kKvLora),
    TensorRule{.pattern = "model.layers.{layer}.self_attn.kv_b_proj.weight",
               .role = Role::kKvbProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kMlaKvB, Dim::kKvLora},
               .fp8_by_default = true,
               .cut = Cut::kColumn},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.o_proj.weight",
               .role = Role::kOProj,
               .scope = Scope::kLayer,
               .shape = {Dim::kHidden, Dim::kMlaV},
               .fp8_by_default = true,
               .cut = Cut::kRow},
    // With `attention_bias`, which no released model sets.
    TensorRule{.pattern = "model.layers.{layer}.self_attn.q_a_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kQLora},
               .fuse = Fuse::kQaKva,
               .presence = Presence::kOptional},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kKvA},
               .fuse = Fuse::kQaKva,
               .presence = Presence::kOptional},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.o_proj.bias",
               .role = Role::kAttentionBias,
               .scope = Scope::kLayer,
               .shape = {Dim::kHidden},
               .presence = Presence::kOptional},
};

/// DeepSeek sparse attention. Loaders join wk (decoded) and weights_proj.
inline constexpr std::array kIndexerRules = {
    TensorRule{.pattern = "model.layers.{layer}.self_attn.indexer.wq_b.weight",
               .role = Role::kIndexerQ,
               .scope = Scope::kLayer,
               .shape = {Dim::kIndexQ, Dim::kQLora},
               .fp8_by_default = true,
               .presence = Presence::kOwnIndexer},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.indexer.wk.weight",
               .role = Role::kIndexerK,
               .scope = Scope::kLayer,
               .shape = {Dim::kIndexDim, Dim::kHidden},
               .fp8_by_default = true,
               .fuse = Fuse::kIndexerK,
               .presence = Presence::kOwnIndexer},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.indexer.k_norm.weight",
               .role = Role::kIndexerKNorm,
               .scope = Scope::kLayer,
               .shape = {Dim::kIndexDim},
               .presence = Presence::kOwnIndexer},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.indexer.k_norm.bias",
               .role = Role::kIndexerKNorm,
               .scope = Scope::kLayer,
               .shape = {Dim::kIndexDim},
               .presence = Presence::kOwnIndexer},
    TensorRule{.pattern = "model.layers.{layer}.self_attn.indexer.weights_proj.weight",
               .role = Role::kIndexerWeights,
               .scope = Scope::kLayer,
               .shape = {Dim::kIndexHeads, Dim::kHidden},
               .fuse = Fuse::kIndexerK,
               .presence = Presence::kOwnIndexer},
};

/// What a multi-token prediction layer has beside the tensors of an ordinary layer with experts.
/// The embedding and the head are stored copies of the model's own.
inline constexpr std::array kMtpRules = {
    TensorRule{.pattern = "model.layers.{layer}.embed_tokens.weight",
               .role = Role::kMtpEmbedding,
               .scope = Scope::kMtpLayer,
               .shape = {Dim::kVocab, Dim::kHidden},
               .cut = Cut::kVocab},
    norm_rule("model.layers.{layer}.enorm.weight", Role::kMtpEmbeddingNorm, Scope::kMtpLayer,
              Dim::kHidden),
    norm_rule("model.layers.{layer}.hnorm.weight", Role::kMtpHiddenNorm, Scope::kMtpLayer,
              Dim::kHidden),
    TensorRule{.pattern = "model.layers.{layer}.eh_proj.weight",
               .role = Role::kMtpProj,
               .scope = Scope::kMtpLayer,
               .shape = {Dim::kHidden, Dim::kTwoHidden}},
    norm_rule("model.layers.{layer}.shared_head.norm.weight", Role::kMtpHeadNorm, Scope::kMtpLayer,
              Dim::kHidden),
    TensorRule{.pattern = "model.layers.{layer}.shared_head.head.weight",
               .role = Role::kMtpHead,
               .scope = Scope::kMtpLayer,
               .shape = {Dim::kVocab, Dim::kHidden},
               .silence = Silence::kHead,
               .cut = Cut::kVocab},
};

inline constexpr auto kDeepseekV3Rules =
    concat_rules(kModelRules, kLayerNormRules, kMlaRules, kRotaryRules, kDenseMlpRules,
                 kExpertRules, kRouterBiasRules, kSharedExpertRules, kMtpRules);

}  // namespace ingot::formats
