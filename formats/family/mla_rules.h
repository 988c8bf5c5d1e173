#pragma once

#include <array>

#include "formats/family/decoder_rules.h"

// Rows of multi-head latent attention, of the sparse-attention indexer and of the multi-token
// prediction layers, and the whole of a DeepSeek-V3 decoder made of them.

namespace ingot::formats {

inline constexpr std::array kMlaRules = {
    linear_rule("model.layers.{layer}.self_attn.q_a_proj.weight", Role::kQaProj, Scope::kLayer,
                {Dim::kQLora, Dim::kHidden}, Fuse::kQaKva, Presence::kWithQLora),
    plain_rule("model.layers.{layer}.self_attn.q_a_layernorm.weight", Role::kQaNorm, Scope::kLayer,
               {Dim::kQLora}, Presence::kWithQLora),
    linear_rule("model.layers.{layer}.self_attn.q_b_proj.weight", Role::kQbProj, Scope::kLayer,
                {Dim::kMlaQ, Dim::kQLora}, Cut::kColumn, Presence::kWithQLora),
    linear_rule("model.layers.{layer}.self_attn.q_proj.weight", Role::kQProj, Scope::kLayer,
                {Dim::kMlaQ, Dim::kHidden}, Cut::kColumn, Presence::kWithoutQLora),
    linear_rule("model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", Role::kKvaProj,
                Scope::kLayer, {Dim::kKvA, Dim::kHidden}, Fuse::kQaKva),
    norm_rule("model.layers.{layer}.self_attn.kv_a_layernorm.weight", Role::kKvaNorm, Scope::kLayer,
              Dim::kKvLora),
    linear_rule("model.layers.{layer}.self_attn.kv_b_proj.weight", Role::kKvbProj, Scope::kLayer,
                {Dim::kMlaKvB, Dim::kKvLora}, Cut::kColumn),
    linear_rule("model.layers.{layer}.self_attn.o_proj.weight", Role::kOProj, Scope::kLayer,
                {Dim::kHidden, Dim::kMlaV}, Cut::kRow),
    // With `attention_bias`, which no released model sets.
    plain_rule("model.layers.{layer}.self_attn.q_a_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kQLora}, Fuse::kQaKva, Presence::kOptional),
    plain_rule("model.layers.{layer}.self_attn.kv_a_proj_with_mqa.bias", Role::kAttentionBias,
               Scope::kLayer, {Dim::kKvA}, Fuse::kQaKva, Presence::kOptional),
    plain_rule("model.layers.{layer}.self_attn.o_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kHidden}, Presence::kOptional),
};

/// DeepSeek sparse attention. Loaders join wk (decoded) and weights_proj.
inline constexpr std::array kIndexerRules = {
    linear_rule("model.layers.{layer}.self_attn.indexer.wq_b.weight", Role::kIndexerQ,
                Scope::kLayer, {Dim::kIndexQ, Dim::kQLora}, Presence::kOwnIndexer),
    linear_rule("model.layers.{layer}.self_attn.indexer.wk.weight", Role::kIndexerK, Scope::kLayer,
                {Dim::kIndexDim, Dim::kHidden}, Fuse::kIndexerK, Presence::kOwnIndexer),
    plain_rule("model.layers.{layer}.self_attn.indexer.k_norm.weight", Role::kIndexerKNorm,
               Scope::kLayer, {Dim::kIndexDim}, Presence::kOwnIndexer),
    plain_rule("model.layers.{layer}.self_attn.indexer.k_norm.bias", Role::kIndexerKNorm,
               Scope::kLayer, {Dim::kIndexDim}, Presence::kOwnIndexer),
    plain_rule("model.layers.{layer}.self_attn.indexer.weights_proj.weight", Role::kIndexerWeights,
               Scope::kLayer, {Dim::kIndexHeads, Dim::kHidden}, Fuse::kIndexerK,
               Presence::kOwnIndexer),
};

/// What a multi-token prediction layer has beside the tensors of an ordinary layer with experts.
/// The embedding and the head are stored copies of the model's own.
inline constexpr std::array kMtpRules = {
    plain_rule("model.layers.{layer}.embed_tokens.weight", Role::kMtpEmbedding, Scope::kMtpLayer,
               {Dim::kVocab, Dim::kHidden}, Cut::kVocab),
    norm_rule("model.layers.{layer}.enorm.weight", Role::kMtpEmbeddingNorm, Scope::kMtpLayer,
              Dim::kHidden),
    norm_rule("model.layers.{layer}.hnorm.weight", Role::kMtpHiddenNorm, Scope::kMtpLayer,
              Dim::kHidden),
    plain_rule("model.layers.{layer}.eh_proj.weight", Role::kMtpProj, Scope::kMtpLayer,
               {Dim::kHidden, Dim::kTwoHidden}),
    norm_rule("model.layers.{layer}.shared_head.norm.weight", Role::kMtpHeadNorm, Scope::kMtpLayer,
              Dim::kHidden),
    plain_rule("model.layers.{layer}.shared_head.head.weight", Role::kMtpHead, Scope::kMtpLayer,
               {Dim::kVocab, Dim::kHidden}, Silence::kHead, Cut::kVocab),
};

inline constexpr auto kDeepseekV3Rules =
    concat_rules(kModelRules, kLayerNormRules, kMlaRules, kRotaryRules, kDenseMlpRules,
                 kExpertRules, kRouterBiasRules, kSharedExpertRules, kMtpRules);

}  // namespace ingot::formats
