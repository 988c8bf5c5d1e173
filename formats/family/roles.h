#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

// clang-format off

/// Every role, once: its enumerator, and its word in recipes and reports.
#define INGOT_ROLES(X) \
  X(kEmbedding, "embedding") \
  X(kHead, "head") \
  X(kFinalNorm, "final-norm") \
  X(kInputNorm, "input-norm") \
  X(kPostAttentionNorm, "post-attention-norm") \
  X(kQProj, "q-proj") \
  X(kKProj, "k-proj") \
  X(kVProj, "v-proj") \
  X(kQNorm, "q-norm") \
  X(kKNorm, "k-norm") \
  X(kQaProj, "q-a-proj") \
  X(kQaNorm, "q-a-norm") \
  X(kQbProj, "q-b-proj") \
  X(kKvaProj, "kv-a-proj") \
  X(kKvaNorm, "kv-a-norm") \
  X(kKvbProj, "kv-b-proj") \
  X(kOProj, "o-proj") \
  X(kAttentionBias, "attention-bias") \
  X(kAttentionSinks, "attention-sinks") /* a logit per head that no key has */ \
  X(kAttentionGate, "attention-gate") /* makes a factor per head of attention's output */ \
  X(kLinearAttentionIn, "linear-attention-in") /* linear attention: makes keys, values and gates */ \
  X(kLinearAttentionOut, "linear-attention-out") \
  X(kLinearAttentionState, "linear-attention-state") /* decays, convolution, norm: parameters that stay as they are */ \
  X(kIndexerQ, "indexer-q") \
  X(kIndexerK, "indexer-k") \
  X(kIndexerKNorm, "indexer-k-norm") \
  X(kIndexerWeights, "indexer-weights") \
  X(kRouter, "router") \
  X(kRouterBias, "router-bias") \
  X(kDenseGate, "dense-gate") \
  X(kDenseUp, "dense-up") \
  X(kDenseDown, "dense-down") \
  X(kExpertGate, "expert-gate") \
  X(kExpertUp, "expert-up") \
  X(kExpertDown, "expert-down") \
  X(kExpertsGateUp, "experts-gate-up") \
  X(kExpertsGate, "experts-gate") /* in families whose stacks hold one projection each */ \
  X(kExpertsUp, "experts-up") \
  X(kExpertsDown, "experts-down") \
  X(kExpertGateBias, "expert-gate-bias") \
  X(kExpertUpBias, "expert-up-bias") \
  X(kExpertDownBias, "expert-down-bias") \
  X(kExpertsGateUpBias, "experts-gate-up-bias") \
  X(kExpertsDownBias, "experts-down-bias") \
  X(kSharedGate, "shared-gate") \
  X(kSharedUp, "shared-up") \
  X(kSharedDown, "shared-down") \
  X(kSharedRouter, "shared-router") /* the gate over a shared expert */ \
  X(kMtpEmbedding, "mtp-embedding") \
  X(kMtpEmbeddingNorm, "mtp-embedding-norm") \
  X(kMtpHiddenNorm, "mtp-hidden-norm") \
  X(kMtpProj, "mtp-proj") \
  X(kMtpHeadNorm, "mtp-head-norm") \
  X(kMtpHead, "mtp-head") \
  X(kRotary, "rotary") \
  X(kLookupTable, "lookup-table") /* embeddings of n-grams, of up to 400 million rows: no rule of linears either */ \
  X(kOtherModality, "other-modality") /* towers and projectors for images and sound: copied, in no rule of linears */ \
  X(kUnknown, "unknown") /* no row of a known family has the name: copied, in no rule of linears */ \
  X(kOther, "other") /* outside any grammar (family generic) */

/// Every fine role: its enumerator, its word in family files, and its role.
#define INGOT_FINE_ROLES(X) \
  X(kQBias, "q-bias", kAttentionBias) \
  X(kKBias, "k-bias", kAttentionBias) \
  X(kVBias, "v-bias", kAttentionBias) \
  X(kOBias, "o-bias", kAttentionBias) \
  X(kQkvBias, "qkv-bias", kAttentionBias) /* of queries, then of keys, then of values */ \
  X(kQNormBias, "q-norm-bias", kQNorm) \
  X(kKNormBias, "k-norm-bias", kKNorm) \
  X(kLatentGate, "latent-gate", kLinearAttentionState) \
  X(kDistanceProj, "distance-proj", kOther) \
  X(kDistanceTable, "distance-table", kOther) \
  X(kKConvolution, "k-convolution", kOther) \
  X(kVConvolution, "v-convolution", kOther) \
  X(kQueryGrowth, "query-growth", kOther) \
  X(kQueryGrowthBias, "query-growth-bias", kOther) \
  X(kRopeFactors, "rope-factors", kOther) \
  X(kIndexerQNorm, "indexer-q-norm", kIndexerKNorm) \
  X(kIndexerKNormBias, "indexer-k-norm-bias", kIndexerKNorm) \
  X(kIndexerInputNorm, "indexer-input-norm", kOther) \
  X(kIndexerInputNormBias, "indexer-input-norm-bias", kOther) \
  X(kIndexerPoolGate, "indexer-pool-gate", kOther) \
  X(kIndexerPoolPlaces, "indexer-pool-places", kOther) \
  X(kIndexerQueryGrowth, "indexer-query-growth", kOther) \
  X(kIndexerQueryGrowthBias, "indexer-query-growth-bias", kOther) \
  X(kOAProj, "o-a-proj", kOProj) \
  X(kCompressedSinks, "compressed-sinks", kOther) \
  X(kCompressorValues, "compressor-values", kOther) \
  X(kCompressorGate, "compressor-gate", kOther) \
  X(kCompressorPlaces, "compressor-places", kOther) \
  X(kCompressorNorm, "compressor-norm", kOther) \
  X(kIndexCompressorValues, "index-compressor-values", kOther) \
  X(kIndexCompressorGate, "index-compressor-gate", kOther) \
  X(kIndexCompressorPlaces, "index-compressor-places", kOther) \
  X(kIndexCompressorNorm, "index-compressor-norm", kOther) \
  X(kLinearQ, "linear-q", kLinearAttentionIn) \
  X(kLinearK, "linear-k", kLinearAttentionIn) \
  X(kLinearV, "linear-v", kLinearAttentionIn) \
  X(kLinearQkv, "linear-qkv", kLinearAttentionIn) \
  X(kLinearZ, "linear-z", kLinearAttentionIn) \
  X(kLinearQkvz, "linear-qkvz", kLinearAttentionIn) \
  X(kLinearIn, "linear-in", kLinearAttentionIn) \
  X(kLinearGate, "linear-gate", kLinearAttentionState) \
  X(kLinearGateA, "linear-gate-a", kLinearAttentionState) \
  X(kLinearGateB, "linear-gate-b", kLinearAttentionState) \
  X(kLinearBeta, "linear-beta", kLinearAttentionState) \
  X(kLinearDecay, "linear-decay", kLinearAttentionState) \
  X(kLinearDecayA, "linear-decay-a", kLinearAttentionState) \
  X(kLinearDecayB, "linear-decay-b", kLinearAttentionState) \
  X(kLinearBetaDecay, "linear-beta-decay", kLinearAttentionState) \
  X(kLinearConvolution, "linear-convolution", kLinearAttentionState) \
  X(kLinearQConvolution, "linear-q-convolution", kLinearAttentionState) \
  X(kLinearKConvolution, "linear-k-convolution", kLinearAttentionState) \
  X(kLinearVConvolution, "linear-v-convolution", kLinearAttentionState) \
  X(kLinearConvolutionBias, "linear-convolution-bias", kLinearAttentionState) \
  X(kLinearRate, "linear-rate", kLinearAttentionState) \
  X(kLinearChoice, "linear-choice", kLinearAttentionState) \
  X(kLinearStep, "linear-step", kLinearAttentionState) \
  X(kLinearStepBias, "linear-step-bias", kLinearAttentionState) \
  X(kLinearStepNorm, "linear-step-norm", kLinearAttentionState) \
  X(kLinearBNorm, "linear-b-norm", kLinearAttentionState) \
  X(kLinearCNorm, "linear-c-norm", kLinearAttentionState) \
  X(kLinearSkip, "linear-skip", kLinearAttentionState) \
  X(kLinearNorm, "linear-norm", kLinearAttentionState) \
  X(kLinearInBias, "linear-in-bias", kAttentionBias) \
  X(kLinearOutBias, "linear-out-bias", kAttentionBias) \
  X(kAttentionOutputNorm, "attention-output-norm", kPostAttentionNorm) \
  X(kFeedForwardOutputNorm, "feed-forward-output-norm", kPostAttentionNorm) \
  X(kMixerStreamsFn, "mixer-streams-fn", kOther) \
  X(kMixerStreamsBase, "mixer-streams-base", kOther) \
  X(kMixerStreamsScale, "mixer-streams-scale", kOther) \
  X(kFeedForwardStreamsFn, "feed-forward-streams-fn", kOther) \
  X(kFeedForwardStreamsBase, "feed-forward-streams-base", kOther) \
  X(kFeedForwardStreamsScale, "feed-forward-streams-scale", kOther) \
  X(kHeadStreamsFn, "head-streams-fn", kOther) \
  X(kHeadStreamsBase, "head-streams-base", kOther) \
  X(kHeadStreamsScale, "head-streams-scale", kOther) \
  X(kMixerConvolution, "mixer-convolution", kOther) \
  X(kFeedForwardConvolution, "feed-forward-convolution", kOther) \
  X(kDenseScale, "dense-scale", kOther) \
  X(kRouterScale, "router-scale", kOther) \
  X(kRouterTable, "router-table", kOther) \
  X(kQkvProj, "qkv-proj", kQProj) /* rows of queries, then of keys, then of values */ \
  X(kDenseGateUp, "dense-gate-up", kDenseGate) \
  X(kSharedGateUp, "shared-gate-up", kSharedGate) \
  X(kInputNormBias, "input-norm-bias", kInputNorm) \
  X(kPostAttentionNormBias, "post-attention-norm-bias", kPostAttentionNorm) \
  X(kFinalNormBias, "final-norm-bias", kFinalNorm) \
  X(kDenseGateBias, "dense-gate-bias", kOther) \
  X(kDenseUpBias, "dense-up-bias", kOther) \
  X(kDenseDownBias, "dense-down-bias", kOther) \
  X(kXieluPositive, "xielu-positive", kOther) \
  X(kXieluNegative, "xielu-negative", kOther) \
  X(kXieluSlope, "xielu-slope", kOther) \
  X(kXieluLeast, "xielu-least", kOther) \
  X(kHeadBias, "head-bias", kOther) \
  X(kMixtureBias, "mixture-bias", kOther) \
  X(kKvProj, "kv-proj", kKProj) \
  X(kAttentionRouter, "attention-router", kOther) \
  X(kExpertQueries, "expert-queries", kOther) \
  X(kExpertOutputs, "expert-outputs", kOther) \
  X(kAttentionExpertsBias, "attention-experts-bias", kOther) \
  X(kLayerScale, "layer-scale", kOther) \
  X(kRouterInputScale, "router-input-scale", kOther) \
  X(kRouterExpertScale, "router-expert-scale", kOther) \
  X(kDenseOutputNorm, "dense-output-norm", kPostAttentionNorm) \
  X(kMixtureInputNorm, "mixture-input-norm", kPostAttentionNorm) \
  X(kMixtureOutputNorm, "mixture-output-norm", kPostAttentionNorm) \
  X(kLinearQueryDecay, "linear-query-decay", kOther) \
  X(kLinearKeyDecay, "linear-key-decay", kOther) \
  X(kLinearDiagonalDecay, "linear-diagonal-decay", kOther) \
  X(kMixerStreamsNorm, "mixer-streams-norm", kOther) \
  X(kMixerStreamsDown, "mixer-streams-down", kOther) \
  X(kMixerStreamsUp, "mixer-streams-up", kOther) \
  X(kMixerStreamsInject, "mixer-streams-inject", kOther) \
  X(kFeedForwardStreamsNorm, "feed-forward-streams-norm", kOther) \
  X(kFeedForwardStreamsDown, "feed-forward-streams-down", kOther) \
  X(kFeedForwardStreamsUp, "feed-forward-streams-up", kOther) \
  X(kFeedForwardStreamsInject, "feed-forward-streams-inject", kOther) \
  X(kHeadStreamsNorm, "head-streams-norm", kOther) \
  X(kHeadStreamsDown, "head-streams-down", kOther) \
  X(kHeadStreamsUp, "head-streams-up", kOther) \
  X(kIndexerQk, "indexer-qk", kIndexerQ) /* rows of queries, then of keys */ \
  X(kNgramMultipliers, "ngram-multipliers", kOther) /* of a token and of those before it */ \
  X(kNgramSizes, "ngram-sizes", kOther) \
  X(kNgramOffsets, "ngram-offsets", kOther) \
  X(kNgramKeys, "ngram-keys", kOther) \
  X(kNgramValues, "ngram-values", kOther) \
  X(kNgramKeyNorm, "ngram-key-norm", kOther) \
  X(kNgramStateNorm, "ngram-state-norm", kOther) \
  X(kNgramOutputNorm, "ngram-output-norm", kOther) \
  X(kNgramConvolution, "ngram-convolution", kOther) \
  X(kInputNormDown, "input-norm-down", kOther) \
  X(kInputNormUp, "input-norm-up", kOther) \
  X(kPostAttentionNormDown, "post-attention-norm-down", kOther) \
  X(kPostAttentionNormUp, "post-attention-norm-up", kOther) \
  X(kAttentionOutputNormDown, "attention-output-norm-down", kOther) \
  X(kAttentionOutputNormUp, "attention-output-norm-up", kOther) \
  X(kFeedForwardOutputNormDown, "feed-forward-output-norm-down", kOther) \
  X(kFeedForwardOutputNormUp, "feed-forward-output-norm-up", kOther) \
  X(kFinalNormDown, "final-norm-down", kOther) \
  X(kFinalNormUp, "final-norm-up", kOther) \
  X(kQaNormDown, "q-a-norm-down", kOther) \
  X(kQaNormUp, "q-a-norm-up", kOther) \
  X(kKvaNormDown, "kv-a-norm-down", kOther) \
  X(kKvaNormUp, "kv-a-norm-up", kOther) \
  X(kRopeKeyNorm, "rope-key-norm", kKvaNorm) \
  X(kAttentionGateBias, "attention-gate-bias", kOther) \
  X(kMixerResidualGate, "mixer-residual-gate", kOther) \
  X(kFeedForwardResidualGate, "feed-forward-residual-gate", kOther) \
  X(kPoolProj, "pool-proj", kOther) \
  X(kPoolNorm, "pool-norm", kPostAttentionNorm) \
  X(kUnpoolProj, "unpool-proj", kOther) \
  X(kExpertOutputNorm, "expert-output-norm", kPostAttentionNorm) \
  X(kVDelayedProj, "v-delayed-proj", kVProj) \
  X(kQkConvolution, "qk-convolution", kOther) \
  X(kQkConvolutionBias, "qk-convolution-bias", kOther) \
  X(kQkGroupConvolution, "qk-group-convolution", kOther) \
  X(kQkGroupConvolutionBias, "qk-group-convolution-bias", kOther) \
  X(kKeyFactor, "key-factor", kOther) \
  X(kMixerOutputFactor, "mixer-output-factor", kOther) \
  X(kMixerOutputShift, "mixer-output-shift", kOther) \
  X(kMixerResidualFactor, "mixer-residual-factor", kOther) \
  X(kMixerResidualShift, "mixer-residual-shift", kOther) \
  X(kFeedForwardOutputFactor, "feed-forward-output-factor", kOther) \
  X(kFeedForwardOutputShift, "feed-forward-output-shift", kOther) \
  X(kFeedForwardResidualFactor, "feed-forward-residual-factor", kOther) \
  X(kFeedForwardResidualShift, "feed-forward-residual-shift", kOther) \
  X(kRouterDown, "router-down", kOther) \
  X(kRouterDownBias, "router-down-bias", kOther) \
  X(kRouterNorm, "router-norm", kOther) \
  X(kRouterFirst, "router-first", kOther) \
  X(kRouterFirstBias, "router-first-bias", kOther) \
  X(kRouterSecond, "router-second", kOther) \
  X(kRouterSecondBias, "router-second-bias", kOther) \
  X(kRouterMemory, "router-memory", kOther) \
  X(kEmbeddingFactor, "embedding-factor", kOther) \
  X(kEmbeddingShift, "embedding-shift", kOther) \
  X(kKInputNorm, "k-input-norm", kInputNorm) \
  X(kVInputNorm, "v-input-norm", kInputNorm) \
  X(kQClip, "q-clip", kOther) \
  X(kDistanceClip, "distance-clip", kOther) \
  X(kTokenSinks, "token-sinks", kOther) \
  X(kKConvolutionTaps, "k-convolution-taps", kOther) \
  X(kVConvolutionTaps, "v-convolution-taps", kOther) \
  X(kMixerSources, "mixer-sources", kOther) \
  X(kFeedForwardSources, "feed-forward-sources", kOther) \
  X(kHeadSources, "head-sources", kOther) \
  X(kQControllerDown, "q-controller-down", kOther) \
  X(kQControllerGain, "q-controller-gain", kOther) \
  X(kQControllerForget, "q-controller-forget", kOther) \
  X(kKControllerDown, "k-controller-down", kOther) \
  X(kKControllerGain, "k-controller-gain", kOther) \
  X(kKControllerForget, "k-controller-forget", kOther) \
  X(kVControllerDown, "v-controller-down", kOther) \
  X(kVControllerGain, "v-controller-gain", kOther) \
  X(kVControllerForget, "v-controller-forget", kOther) \
  X(kFeedForwardControllerDown, "feed-forward-controller-down", kOther) \
  X(kFeedForwardControllerGain, "feed-forward-controller-gain", kOther) \
  X(kFeedForwardControllerForget, "feed-forward-controller-forget", kOther) \
  X(kLoopQueries, "loop-queries", kOther) \
  X(kLoopKeyQueries, "loop-key-queries", kOther) \
  X(kLayerInputsProj, "layer-inputs-proj", kOther) /* makes the inputs of all layers */ \
  X(kLayerInputsNorm, "layer-inputs-norm", kOther) \
  X(kLayerInputGate, "layer-input-gate", kOther) \
  X(kLayerInputProj, "layer-input-proj", kOther) \
  X(kLayerInputNorm, "layer-input-norm", kOther) \
  X(kMixerResidualDown, "mixer-residual-down", kOther) \
  X(kMixerResidualUp, "mixer-residual-up", kOther) \
  X(kMixerResidualNorm, "mixer-residual-norm", kOther) \
  X(kStreamsRouter, "streams-router", kOther) \
  X(kStreamsRouterNorm, "streams-router-norm", kOther) \
  X(kStreamsPredict, "streams-predict", kOther) \
  X(kStreamsCorrect, "streams-correct", kOther) \
  X(kStreamsFactor, "streams-factor", kOther) \
  X(kStreamsSpread, "streams-spread", kOther) \
  X(kStreamsJoin, "streams-join", kOther)

// clang-format on

namespace ingot::formats {

/// The purpose of a tensor. Names in role_name().
enum class Role : std::uint8_t {
#define X(role, word) role,
  INGOT_ROLES(X)
#undef X
};
std::string_view role_name(Role role);
std::optional<Role> find_role(std::string_view name);

/// The exact purpose of a tensor where others of its layer have the same role: the forward pass
/// finds each by it. Names in fine_role_name(); `role:` of a family file takes these too, and the
/// row has the role of its fine role.
enum class FineRole : std::uint8_t {
#define X(role, word, coarse) role,
  INGOT_FINE_ROLES(X)
#undef X
};
std::string_view fine_role_name(FineRole role);
std::optional<FineRole> find_fine_role(std::string_view name);
Role role_of(FineRole role);

/// A set of roles.
class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= bit(role);
  }
  [[nodiscard]] constexpr bool has(Role role) const { return (bits_ & bit(role)) != 0; }
  [[nodiscard]] constexpr RoleSet without(RoleSet other) const {
    RoleSet set;
    set.bits_ = bits_ & ~other.bits_;
    return set;
  }
  friend constexpr RoleSet operator|(RoleSet a, RoleSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  static constexpr std::uint64_t bit(Role role) {
    return std::uint64_t{1} << static_cast<unsigned>(role);
  }
  std::uint64_t bits_ = 0;
};
static_assert(static_cast<unsigned>(Role::kOther) < 64);

inline constexpr RoleSet kSingleExpertRoles = {Role::kExpertGate, Role::kExpertUp,
                                               Role::kExpertDown};
inline constexpr RoleSet kExpertStackRoles = {Role::kExpertsGateUp, Role::kExpertsGate,
                                              Role::kExpertsUp, Role::kExpertsDown};
inline constexpr RoleSet kExpertRoles = kSingleExpertRoles | kExpertStackRoles;
inline constexpr RoleSet kExpertBiasStackRoles = {Role::kExpertsGateUpBias, Role::kExpertsDownBias};
inline constexpr RoleSet kExpertBiasRoles =
    RoleSet{Role::kExpertGateBias, Role::kExpertUpBias, Role::kExpertDownBias} |
    kExpertBiasStackRoles;
inline constexpr RoleSet kSharedExpertRoles = {Role::kSharedGate, Role::kSharedUp,
                                               Role::kSharedDown};
inline constexpr RoleSet kDenseMlpRoles = {Role::kDenseGate, Role::kDenseUp, Role::kDenseDown};
inline constexpr RoleSet kMlpRoles = kExpertRoles | kSharedExpertRoles | kDenseMlpRoles;
inline constexpr RoleSet kNormRoles = {
    Role::kFinalNorm,     Role::kInputNorm,    Role::kPostAttentionNorm,
    Role::kQNorm,         Role::kKNorm,        Role::kQaNorm,
    Role::kKvaNorm,       Role::kIndexerKNorm, Role::kMtpEmbeddingNorm,
    Role::kMtpHiddenNorm, Role::kMtpHeadNorm};

/// True if a role is that of a routed expert's weight, or of the stack of them all.
constexpr bool is_routed_expert(Role role) {
  return kExpertRoles.has(role);
}
/// True if a role is that of a routed expert's bias, or of the stack of them all.
constexpr bool is_expert_bias(Role role) {
  return kExpertBiasRoles.has(role);
}
/// True if a role is that of a routed expert's weight or bias, single or stacked.
constexpr bool is_of_routed_expert(Role role) {
  return (kExpertRoles | kExpertBiasRoles).has(role);
}
/// True if one tensor of this role has a matrix, or a bias, of each routed expert.
constexpr bool is_expert_stack(Role role) {
  return (kExpertStackRoles | kExpertBiasStackRoles).has(role);
}
/// True if a role is that of a linear of an MLP or an expert, as opposed to attention.
constexpr bool is_feed_forward(Role role) {
  return kMlpRoles.has(role);
}
/// True if a role is that of a norm's weight or bias, of whatever kind.
constexpr bool is_norm(Role role) {
  return kNormRoles.has(role);
}

inline constexpr RoleSet kAttentionRoles = {Role::kQProj,
                                            Role::kKProj,
                                            Role::kVProj,
                                            Role::kQaProj,
                                            Role::kQbProj,
                                            Role::kKvaProj,
                                            Role::kKvbProj,
                                            Role::kOProj,
                                            Role::kLinearAttentionIn,
                                            Role::kLinearAttentionOut};
inline constexpr RoleSet kIndexerRoles = {Role::kIndexerQ, Role::kIndexerK};

/// Roles with a common name, which a rule takes as `role:NAME`.
struct RoleGroup {
  std::string_view name;
  std::string_view summary;
  RoleSet roles;
};
std::span<const RoleGroup> role_groups();

/// The roles that a word names: those of a group, or one. Nullopt for any other word.
std::optional<RoleSet> find_roles(std::string_view word);

}  // namespace ingot::formats
