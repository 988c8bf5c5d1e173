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

constexpr TensorRule norm_rule(std::string_view pattern, Role role, Scope scope, Dim width) {
  return {.pattern = pattern, .role = role, .scope = scope, .shape = {width}};
}

inline constexpr std::array kModelRules = {
    TensorRule{.pattern = "model.embed_tokens.weight",
               .role = Role::kEmbedding,
               .scope = Scope::kModel,
               .shape = {Dim::kVocab, Dim::kHidden},
               .cut = Cut::kVocab},
    norm_rule("model.norm.weight", Role::kFinalNorm, Scope::kModel, Dim::kHidden),
    TensorRule{.pattern = "lm_head.weight",
               .role = Role::kHead,
               .scope = Scope::kModel,
               .shape = {Dim::kVocab, Dim::kHidden},
               .silence = Silence::kHead,
               .cut = Cut::kVocab,
               .presence = Presence::kUntied},
};

inline constexpr std::array kLayerNormRules = {
    norm_rule("model.layers.{layer}.input_layernorm.weight", Role::kInputNorm, Scope::kLayer,
              Dim::kHidden),
    norm_rule("model.layers.{layer}.post_attention_layernorm.weight", Role::kPostAttentionNorm,
              Scope::kLayer, Dim::kHidden),
};

/// Written by old exporters, read by nobody: the frequencies follow from the config.
inline constexpr std::array kRotaryRules = {
    TensorRule{.pattern = "model.layers.{layer}.self_attn.rotary_emb.inv_freq",
               .role = Role::kRotary,
               .scope = Scope::kLayer,
               .shape = {Dim::kRotaryHalf},
               .presence = Presence::kOptional,
               .synth_dtype = DType::kF32},
};

inline constexpr std::array kDenseMlpRules = {
    TensorRule{.pattern = "model.layers.{layer}.mlp.gate_proj.weight",
               .role = Role::kDenseGate,
               .scope = Scope::kDenseLayer,
               .shape = {Dim::kIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp},
    TensorRule{.pattern = "model.layers.{layer}.mlp.up_proj.weight",
               .role = Role::kDenseUp,
               .scope = Scope::kDenseLayer,
               .shape = {Dim::kIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp},
    TensorRule{.pattern = "model.layers.{layer}.mlp.down_proj.weight",
               .role = Role::kDenseDown,
               .scope = Scope::kDenseLayer,
               .shape = {Dim::kHidden, Dim::kIntermediate},
               .fp8_by_default = true,
               .cut = Cut::kRow},
};

/// Router and routed experts, in per-expert form and in the stacked form that transformers 5 keeps
/// in memory and may save: [experts, gate rows then up rows, hidden], without `.weight`.
inline constexpr std::array kExpertRules = {
    TensorRule{.pattern = "model.layers.{layer}.mlp.gate.weight",
               .role = Role::kRouter,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kExperts, Dim::kHidden}},
    TensorRule{.pattern = "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
               .role = Role::kExpertGate,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kMoeIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp,
               .presence = Presence::kPerExpert},
    TensorRule{.pattern = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
               .role = Role::kExpertUp,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kMoeIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp,
               .presence = Presence::kPerExpert},
    TensorRule{.pattern = "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
               .role = Role::kExpertDown,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kHidden, Dim::kMoeIntermediate},
               .fp8_by_default = true,
               .cut = Cut::kRow,
               .presence = Presence::kPerExpert},
    TensorRule{.pattern = "model.layers.{layer}.mlp.experts.gate_up_proj",
               .role = Role::kExpertsGateUp,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kExperts, Dim::kTwoMoeIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .presence = Presence::kStacked},
    TensorRule{.pattern = "model.layers.{layer}.mlp.experts.down_proj",
               .role = Role::kExpertsDown,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kExperts, Dim::kHidden, Dim::kMoeIntermediate},
               .fp8_by_default = true,
               .cut = Cut::kRow,
               .presence = Presence::kStacked},
};

/// Expert selection corrected by a bias (`noaux_tc`). Loaders keep it in F32.
inline constexpr std::array kRouterBiasRules = {
    TensorRule{.pattern = "model.layers.{layer}.mlp.gate.e_score_correction_bias",
               .role = Role::kRouterBias,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kExperts},
               .presence = Presence::kCorrected,
               .synth_dtype = DType::kF32},
};

/// One MLP, however many shared experts the config counts.
inline constexpr std::array kSharedExpertRules = {
    TensorRule{.pattern = "model.layers.{layer}.mlp.shared_experts.gate_proj.weight",
               .role = Role::kSharedGate,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kSharedIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp,
               .presence = Presence::kWithSharedExperts},
    TensorRule{.pattern = "model.layers.{layer}.mlp.shared_experts.up_proj.weight",
               .role = Role::kSharedUp,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kSharedIntermediate, Dim::kHidden},
               .fp8_by_default = true,
               .cut = Cut::kColumn,
               .fuse = Fuse::kGateUp,
               .presence = Presence::kWithSharedExperts},
    TensorRule{.pattern = "model.layers.{layer}.mlp.shared_experts.down_proj.weight",
               .role = Role::kSharedDown,
               .scope = Scope::kMoeLayer,
               .shape = {Dim::kHidden, Dim::kSharedIntermediate},
               .fp8_by_default = true,
               .cut = Cut::kRow,
               .presence = Presence::kWithSharedExperts},
};

}  // namespace ingot::formats
