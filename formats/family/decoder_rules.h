#pragma once

#include <array>
#include <cstddef>

#include "formats/family/family.h"

// Rows that decoders of several families share: everything but attention. A family is a
// concatenation of such blocks. Cuts and fused groups: docs/formats.md, "Tensor parallelism" and
// "Fused modules".

namespace ingot::formats {

template <std::size_t... N>
constexpr std::array<TensorRule, (N + ...)> concat_rules(
    const std::array<TensorRule, N>&... blocks) {
  std::array<TensorRule, (N + ...)> all{};
  std::size_t next = 0;
  const auto append = [&](const auto& block) {
    for (const TensorRule& rule : block) all[next++] = rule;
  };
  (append(blocks), ...);
  return all;
}

// What a row has beside name, role, scope and shape, in any order.
constexpr void give(TensorRule& rule, Cut cut) {
  rule.cut = cut;
}
constexpr void give(TensorRule& rule, Fuse fuse) {
  rule.fuse = fuse;
}
constexpr void give(TensorRule& rule, Presence presence) {
  rule.presence = presence;
}
constexpr void give(TensorRule& rule, Silence silence) {
  rule.silence = silence;
}
constexpr void give(TensorRule& rule, DType dtype) {
  rule.synth_dtype = dtype;
}
constexpr void give(TensorRule& rule, StackOrder stack) {
  rule.stack = stack;
}
constexpr void give(TensorRule& rule, GateUpOrder gate_up) {
  rule.gate_up = gate_up;
}

/// A tensor that FP8 releases leave as it is.
template <class... Traits>
constexpr TensorRule plain_rule(std::string_view pattern, Role role, Scope scope,
                                std::array<Dim, 3> shape, Traits... traits) {
  TensorRule rule{.pattern = pattern, .role = role, .scope = scope, .shape = shape};
  (give(rule, traits), ...);
  return rule;
}

/// A linear layer that FP8 releases quantize.
template <class... Traits>
constexpr TensorRule linear_rule(std::string_view pattern, Role role, Scope scope,
                                 std::array<Dim, 3> shape, Traits... traits) {
  TensorRule rule = plain_rule(pattern, role, scope, shape, traits...);
  rule.fp8_by_default = true;
  return rule;
}

constexpr TensorRule norm_rule(std::string_view pattern, Role role, Scope scope, Dim width) {
  return {.pattern = pattern, .role = role, .scope = scope, .shape = {width}};
}

inline constexpr std::array kModelRules = {
    plain_rule("model.embed_tokens.weight", Role::kEmbedding, Scope::kModel,
               {Dim::kVocab, Dim::kHidden}, Cut::kVocab),
    norm_rule("model.norm.weight", Role::kFinalNorm, Scope::kModel, Dim::kHidden),
    plain_rule("lm_head.weight", Role::kHead, Scope::kModel, {Dim::kVocab, Dim::kHidden},
               Silence::kHead, Cut::kVocab, Presence::kUntied),
};

inline constexpr std::array kLayerNormRules = {
    norm_rule("model.layers.{layer}.input_layernorm.weight", Role::kInputNorm, Scope::kLayer,
              Dim::kHidden),
    norm_rule("model.layers.{layer}.post_attention_layernorm.weight", Role::kPostAttentionNorm,
              Scope::kLayer, Dim::kHidden),
};

/// Written by old exporters, read by nobody: the frequencies follow from the config.
inline constexpr std::array kRotaryRules = {
    plain_rule("model.layers.{layer}.self_attn.rotary_emb.inv_freq", Role::kRotary, Scope::kLayer,
               {Dim::kRotaryHalf}, Presence::kOptional, DType::kF32),
};

inline constexpr std::array kDenseMlpRules = {
    linear_rule("model.layers.{layer}.mlp.gate_proj.weight", Role::kDenseGate, Scope::kDenseLayer,
                {Dim::kIntermediate, Dim::kHidden}, Cut::kColumn, Fuse::kGateUp),
    linear_rule("model.layers.{layer}.mlp.up_proj.weight", Role::kDenseUp, Scope::kDenseLayer,
                {Dim::kIntermediate, Dim::kHidden}, Cut::kColumn, Fuse::kGateUp),
    linear_rule("model.layers.{layer}.mlp.down_proj.weight", Role::kDenseDown, Scope::kDenseLayer,
                {Dim::kHidden, Dim::kIntermediate}, Cut::kRow),
};

/// Router and routed experts, in per-expert form and in the stacked form that transformers 5 keeps
/// in memory and may save: [experts, gate rows then up rows, hidden], without `.weight`.
inline constexpr std::array kExpertRules = {
    plain_rule("model.layers.{layer}.mlp.gate.weight", Role::kRouter, Scope::kMoeLayer,
               {Dim::kExperts, Dim::kHidden}),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", Role::kExpertGate,
                Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", Role::kExpertUp,
                Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", Role::kExpertDown,
                Scope::kMoeLayer, {Dim::kHidden, Dim::kMoeIntermediate}, Cut::kRow,
                Presence::kPerExpert),
    linear_rule("model.layers.{layer}.mlp.experts.gate_up_proj", Role::kExpertsGateUp,
                Scope::kMoeLayer, {Dim::kExperts, Dim::kTwoMoeIntermediate, Dim::kHidden},
                Cut::kColumn, Presence::kStacked, StackOrder::kOutputMajor),
    linear_rule("model.layers.{layer}.mlp.experts.down_proj", Role::kExpertsDown, Scope::kMoeLayer,
                {Dim::kExperts, Dim::kHidden, Dim::kMoeIntermediate}, Cut::kRow, Presence::kStacked,
                StackOrder::kOutputMajor),
};

/// Expert selection corrected by a bias (`noaux_tc`). Loaders keep it in F32.
inline constexpr std::array kRouterBiasRules = {
    plain_rule("model.layers.{layer}.mlp.gate.e_score_correction_bias", Role::kRouterBias,
               Scope::kMoeLayer, {Dim::kExperts}, Presence::kCorrected, DType::kF32),
};

/// One MLP, however many shared experts the config counts.
inline constexpr std::array kSharedExpertRules = {
    linear_rule("model.layers.{layer}.mlp.shared_experts.gate_proj.weight", Role::kSharedGate,
                Scope::kMoeLayer, {Dim::kSharedIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kWithSharedExperts),
    linear_rule("model.layers.{layer}.mlp.shared_experts.up_proj.weight", Role::kSharedUp,
                Scope::kMoeLayer, {Dim::kSharedIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kWithSharedExperts),
    linear_rule("model.layers.{layer}.mlp.shared_experts.down_proj.weight", Role::kSharedDown,
                Scope::kMoeLayer, {Dim::kHidden, Dim::kSharedIntermediate}, Cut::kRow,
                Presence::kWithSharedExperts),
};

}  // namespace ingot::formats
