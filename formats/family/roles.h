#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace ingot::formats {

/// The purpose of a tensor. Names in role_name().
enum class Role : std::uint8_t {
  kEmbedding,
  kHead,
  kFinalNorm,
  kInputNorm,
  kPostAttentionNorm,
  kQProj,
  kKProj,
  kVProj,
  kQNorm,
  kKNorm,
  kQaProj,
  kQaNorm,
  kQbProj,
  kKvaProj,
  kKvaNorm,
  kKvbProj,
  kOProj,
  kAttentionBias,
  kAttentionSinks,     ///< a logit per head that no key has
  kAttentionGate,      ///< makes a factor per head of attention's output
  kLinearAttentionIn,  ///< linear attention: makes keys, values and gates
  kLinearAttentionOut,
  kLinearAttentionState,  ///< decays, convolution, norm: parameters that stay as they are
  kIndexerQ,
  kIndexerK,
  kIndexerKNorm,
  kIndexerWeights,
  kRouter,
  kRouterBias,
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertsGateUp,
  kExpertsGate,  ///< in families whose stacks hold one projection each
  kExpertsUp,
  kExpertsDown,
  kExpertGateBias,
  kExpertUpBias,
  kExpertDownBias,
  kExpertsGateUpBias,
  kExpertsDownBias,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedRouter,  ///< the gate over a shared expert
  kMtpEmbedding,
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpProj,
  kMtpHeadNorm,
  kMtpHead,
  kRotary,
  kLookupTable,    ///< embeddings of n-grams, of up to 400 million rows: no rule of linears either
  kOtherModality,  ///< towers and projectors for images and sound: copied, in no rule of linears
  kUnknown,        ///< no row of a known family has the name: copied, in no rule of linears
  kOther,          ///< outside any grammar (family generic)
};
std::string_view role_name(Role role);
std::optional<Role> find_role(std::string_view name);

/// The exact purpose of a tensor where others of its layer have the same role: the forward pass
/// finds each by it. Names in fine_role_name(); `role:` of a family file takes these too, and the
/// row has the role of its fine role.
enum class FineRole : std::uint8_t {
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kLatentGate,
  kDistanceProj,
  kDistanceTable,
  kKConvolution,
  kVConvolution,
  kQueryGrowth,
  kQueryGrowthBias,
  kRopeFactors,
  kIndexerQNorm,
  kIndexerKNormBias,
  kIndexerInputNorm,
  kIndexerInputNormBias,
  kIndexerPoolGate,
  kIndexerPoolPlaces,
  kIndexerQueryGrowth,
  kIndexerQueryGrowthBias,
  kOAProj,
  kCompressedSinks,
  kCompressorValues,
  kCompressorGate,
  kCompressorPlaces,
  kCompressorNorm,
  kIndexCompressorValues,
  kIndexCompressorGate,
  kIndexCompressorPlaces,
  kIndexCompressorNorm,
  kLinearQ,
  kLinearK,
  kLinearV,
  kLinearQkv,
  kLinearZ,
  kLinearQkvz,
  kLinearIn,
  kLinearGate,
  kLinearGateA,
  kLinearGateB,
  kLinearBeta,
  kLinearDecay,
  kLinearDecayA,
  kLinearDecayB,
  kLinearBetaDecay,
  kLinearConvolution,
  kLinearQConvolution,
  kLinearKConvolution,
  kLinearVConvolution,
  kLinearConvolutionBias,
  kLinearRate,
  kLinearChoice,
  kLinearStep,
  kLinearStepBias,
  kLinearStepNorm,
  kLinearBNorm,
  kLinearCNorm,
  kLinearSkip,
  kLinearNorm,
  kLinearInBias,
  kLinearOutBias,
  kAttentionOutputNorm,
  kFeedForwardOutputNorm,
  kMixerStreamsFn,
  kMixerStreamsBase,
  kMixerStreamsScale,
  kFeedForwardStreamsFn,
  kFeedForwardStreamsBase,
  kFeedForwardStreamsScale,
  kHeadStreamsFn,
  kHeadStreamsBase,
  kHeadStreamsScale,
  kMixerConvolution,
  kFeedForwardConvolution,
  kDenseScale,
  kRouterScale,
  kRouterTable,
  kQkvProj,  ///< rows of queries, then of keys, then of values
  kDenseGateUp,
  kSharedGateUp,
  kInputNormBias,
  kPostAttentionNormBias,
  kFinalNormBias,
  kDenseGateBias,
  kDenseUpBias,
  kDenseDownBias,
  kHeadBias,
  kMixtureBias,
  kKvProj,
  kAttentionRouter,
  kExpertQueries,
  kExpertOutputs,
  kAttentionExpertsBias,
  kLayerScale,
  kRouterInputScale,
  kRouterExpertScale,
  kDenseOutputNorm,
  kMixtureInputNorm,
  kMixtureOutputNorm,
  kLinearQueryDecay,
  kLinearKeyDecay,
  kLinearDiagonalDecay,
  kMixerStreamsNorm,
  kMixerStreamsDown,
  kMixerStreamsUp,
  kMixerStreamsInject,
  kFeedForwardStreamsNorm,
  kFeedForwardStreamsDown,
  kFeedForwardStreamsUp,
  kFeedForwardStreamsInject,
  kHeadStreamsNorm,
  kHeadStreamsDown,
  kHeadStreamsUp,
  kIndexerQk,         ///< rows of queries, then of keys
  kNgramMultipliers,  ///< of a token and of those before it
  kNgramSizes,
  kNgramOffsets,
  kNgramKeys,
  kNgramValues,
  kNgramKeyNorm,
  kNgramStateNorm,
  kNgramOutputNorm,
  kNgramConvolution,
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

/// Whether it is that of a routed expert's weight, or of the stack of them all.
constexpr bool is_routed_expert(Role role) {
  return kExpertRoles.has(role);
}
/// Whether it is that of a routed expert's bias, or of the stack of them all.
constexpr bool is_expert_bias(Role role) {
  return kExpertBiasRoles.has(role);
}
/// Whether it is one or the other.
constexpr bool is_of_routed_expert(Role role) {
  return (kExpertRoles | kExpertBiasRoles).has(role);
}
/// Whether one tensor of this role has a matrix, or a bias, of each routed expert.
constexpr bool is_expert_stack(Role role) {
  return (kExpertStackRoles | kExpertBiasStackRoles).has(role);
}
/// Whether a role is that of a linear of an MLP or an expert, as opposed to attention.
constexpr bool is_feed_forward(Role role) {
  return kMlpRoles.has(role);
}
/// Whether a role is that of a norm's weight or bias, of whatever kind.
constexpr bool is_norm(Role role) {
  return kNormRoles.has(role);
}

}  // namespace ingot::formats
