#include "formats/family/roles.h"

#include <array>

#include "formats/container/dtype.h"

namespace ingot::formats {
namespace {

struct RoleFacts {
  Role role;
  std::string_view name;  ///< as in recipes and reports
};

constexpr std::array kRoles = {
    RoleFacts{Role::kEmbedding, "embedding"},
    RoleFacts{Role::kHead, "head"},
    RoleFacts{Role::kFinalNorm, "final-norm"},
    RoleFacts{Role::kInputNorm, "input-norm"},
    RoleFacts{Role::kPostAttentionNorm, "post-attention-norm"},
    RoleFacts{Role::kQProj, "q-proj"},
    RoleFacts{Role::kKProj, "k-proj"},
    RoleFacts{Role::kVProj, "v-proj"},
    RoleFacts{Role::kQNorm, "q-norm"},
    RoleFacts{Role::kKNorm, "k-norm"},
    RoleFacts{Role::kQaProj, "q-a-proj"},
    RoleFacts{Role::kQaNorm, "q-a-norm"},
    RoleFacts{Role::kQbProj, "q-b-proj"},
    RoleFacts{Role::kKvaProj, "kv-a-proj"},
    RoleFacts{Role::kKvaNorm, "kv-a-norm"},
    RoleFacts{Role::kKvbProj, "kv-b-proj"},
    RoleFacts{Role::kOProj, "o-proj"},
    RoleFacts{Role::kAttentionBias, "attention-bias"},
    RoleFacts{Role::kAttentionSinks, "attention-sinks"},
    RoleFacts{Role::kAttentionGate, "attention-gate"},
    RoleFacts{Role::kLinearAttentionIn, "linear-attention-in"},
    RoleFacts{Role::kLinearAttentionOut, "linear-attention-out"},
    RoleFacts{Role::kLinearAttentionState, "linear-attention-state"},
    RoleFacts{Role::kIndexerQ, "indexer-q"},
    RoleFacts{Role::kIndexerK, "indexer-k"},
    RoleFacts{Role::kIndexerKNorm, "indexer-k-norm"},
    RoleFacts{Role::kIndexerWeights, "indexer-weights"},
    RoleFacts{Role::kRouter, "router"},
    RoleFacts{Role::kRouterBias, "router-bias"},
    RoleFacts{Role::kDenseGate, "dense-gate"},
    RoleFacts{Role::kDenseUp, "dense-up"},
    RoleFacts{Role::kDenseDown, "dense-down"},
    RoleFacts{Role::kExpertGate, "expert-gate"},
    RoleFacts{Role::kExpertUp, "expert-up"},
    RoleFacts{Role::kExpertDown, "expert-down"},
    RoleFacts{Role::kExpertsGateUp, "experts-gate-up"},
    RoleFacts{Role::kExpertsGate, "experts-gate"},
    RoleFacts{Role::kExpertsUp, "experts-up"},
    RoleFacts{Role::kExpertsDown, "experts-down"},
    RoleFacts{Role::kExpertGateBias, "expert-gate-bias"},
    RoleFacts{Role::kExpertUpBias, "expert-up-bias"},
    RoleFacts{Role::kExpertDownBias, "expert-down-bias"},
    RoleFacts{Role::kExpertsGateUpBias, "experts-gate-up-bias"},
    RoleFacts{Role::kExpertsDownBias, "experts-down-bias"},
    RoleFacts{Role::kSharedGate, "shared-gate"},
    RoleFacts{Role::kSharedUp, "shared-up"},
    RoleFacts{Role::kSharedDown, "shared-down"},
    RoleFacts{Role::kSharedRouter, "shared-router"},
    RoleFacts{Role::kMtpEmbedding, "mtp-embedding"},
    RoleFacts{Role::kMtpEmbeddingNorm, "mtp-embedding-norm"},
    RoleFacts{Role::kMtpHiddenNorm, "mtp-hidden-norm"},
    RoleFacts{Role::kMtpProj, "mtp-proj"},
    RoleFacts{Role::kMtpHeadNorm, "mtp-head-norm"},
    RoleFacts{Role::kMtpHead, "mtp-head"},
    RoleFacts{Role::kRotary, "rotary"},
    RoleFacts{Role::kLookupTable, "lookup-table"},
    RoleFacts{Role::kOtherModality, "other-modality"},
    RoleFacts{Role::kUnknown, "unknown"},
    RoleFacts{Role::kOther, "other"},
};

static_assert(rows_match_enum(kRoles, &RoleFacts::role, Role::kOther));

struct FineRoleFacts {
  FineRole fine;
  std::string_view name;  ///< as in family files
  Role role;
};

constexpr std::array kFineRoles = {
    FineRoleFacts{FineRole::kQBias, "q-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kKBias, "k-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kVBias, "v-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kOBias, "o-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kLatentGate, "latent-gate", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kDistanceProj, "distance-proj", Role::kOther},
    FineRoleFacts{FineRole::kDistanceTable, "distance-table", Role::kOther},
    FineRoleFacts{FineRole::kKConvolution, "k-convolution", Role::kOther},
    FineRoleFacts{FineRole::kVConvolution, "v-convolution", Role::kOther},
    FineRoleFacts{FineRole::kQueryGrowth, "query-growth", Role::kOther},
    FineRoleFacts{FineRole::kQueryGrowthBias, "query-growth-bias", Role::kOther},
    FineRoleFacts{FineRole::kRopeFactors, "rope-factors", Role::kOther},
    FineRoleFacts{FineRole::kIndexerQNorm, "indexer-q-norm", Role::kIndexerKNorm},
    FineRoleFacts{FineRole::kIndexerKNormBias, "indexer-k-norm-bias", Role::kIndexerKNorm},
    FineRoleFacts{FineRole::kIndexerInputNorm, "indexer-input-norm", Role::kOther},
    FineRoleFacts{FineRole::kIndexerInputNormBias, "indexer-input-norm-bias", Role::kOther},
    FineRoleFacts{FineRole::kIndexerPoolGate, "indexer-pool-gate", Role::kOther},
    FineRoleFacts{FineRole::kIndexerPoolPlaces, "indexer-pool-places", Role::kOther},
    FineRoleFacts{FineRole::kIndexerQueryGrowth, "indexer-query-growth", Role::kOther},
    FineRoleFacts{FineRole::kIndexerQueryGrowthBias, "indexer-query-growth-bias", Role::kOther},
    FineRoleFacts{FineRole::kOAProj, "o-a-proj", Role::kOProj},
    FineRoleFacts{FineRole::kCompressedSinks, "compressed-sinks", Role::kOther},
    FineRoleFacts{FineRole::kCompressorValues, "compressor-values", Role::kOther},
    FineRoleFacts{FineRole::kCompressorGate, "compressor-gate", Role::kOther},
    FineRoleFacts{FineRole::kCompressorPlaces, "compressor-places", Role::kOther},
    FineRoleFacts{FineRole::kCompressorNorm, "compressor-norm", Role::kOther},
    FineRoleFacts{FineRole::kIndexCompressorValues, "index-compressor-values", Role::kOther},
    FineRoleFacts{FineRole::kIndexCompressorGate, "index-compressor-gate", Role::kOther},
    FineRoleFacts{FineRole::kIndexCompressorPlaces, "index-compressor-places", Role::kOther},
    FineRoleFacts{FineRole::kIndexCompressorNorm, "index-compressor-norm", Role::kOther},
    FineRoleFacts{FineRole::kLinearQ, "linear-q", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearK, "linear-k", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearV, "linear-v", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearQkv, "linear-qkv", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearZ, "linear-z", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearQkvz, "linear-qkvz", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearIn, "linear-in", Role::kLinearAttentionIn},
    FineRoleFacts{FineRole::kLinearGate, "linear-gate", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearGateA, "linear-gate-a", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearGateB, "linear-gate-b", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearBeta, "linear-beta", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearDecay, "linear-decay", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearDecayA, "linear-decay-a", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearDecayB, "linear-decay-b", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearBetaDecay, "linear-beta-decay", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearConvolution, "linear-convolution", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearQConvolution, "linear-q-convolution",
                  Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearKConvolution, "linear-k-convolution",
                  Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearVConvolution, "linear-v-convolution",
                  Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearConvolutionBias, "linear-convolution-bias",
                  Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearRate, "linear-rate", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearChoice, "linear-choice", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearStep, "linear-step", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearStepBias, "linear-step-bias", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearStepNorm, "linear-step-norm", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearBNorm, "linear-b-norm", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearCNorm, "linear-c-norm", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearSkip, "linear-skip", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearNorm, "linear-norm", Role::kLinearAttentionState},
    FineRoleFacts{FineRole::kLinearInBias, "linear-in-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kLinearOutBias, "linear-out-bias", Role::kAttentionBias},
    FineRoleFacts{FineRole::kAttentionOutputNorm, "attention-output-norm",
                  Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kFeedForwardOutputNorm, "feed-forward-output-norm",
                  Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kMixerStreamsFn, "mixer-streams-fn", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsBase, "mixer-streams-base", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsScale, "mixer-streams-scale", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsFn, "feed-forward-streams-fn", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsBase, "feed-forward-streams-base", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsScale, "feed-forward-streams-scale", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsFn, "head-streams-fn", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsBase, "head-streams-base", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsScale, "head-streams-scale", Role::kOther},
    FineRoleFacts{FineRole::kMixerConvolution, "mixer-convolution", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardConvolution, "feed-forward-convolution", Role::kOther},
    FineRoleFacts{FineRole::kDenseScale, "dense-scale", Role::kOther},
    FineRoleFacts{FineRole::kRouterScale, "router-scale", Role::kOther},
    FineRoleFacts{FineRole::kRouterTable, "router-table", Role::kOther},
    FineRoleFacts{FineRole::kQkvProj, "qkv-proj", Role::kQProj},
    FineRoleFacts{FineRole::kDenseGateUp, "dense-gate-up", Role::kDenseGate},
    FineRoleFacts{FineRole::kSharedGateUp, "shared-gate-up", Role::kSharedGate},
    FineRoleFacts{FineRole::kInputNormBias, "input-norm-bias", Role::kInputNorm},
    FineRoleFacts{FineRole::kPostAttentionNormBias, "post-attention-norm-bias",
                  Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kFinalNormBias, "final-norm-bias", Role::kFinalNorm},
    FineRoleFacts{FineRole::kDenseGateBias, "dense-gate-bias", Role::kOther},
    FineRoleFacts{FineRole::kDenseUpBias, "dense-up-bias", Role::kOther},
    FineRoleFacts{FineRole::kDenseDownBias, "dense-down-bias", Role::kOther},
    FineRoleFacts{FineRole::kHeadBias, "head-bias", Role::kOther},
    FineRoleFacts{FineRole::kMixtureBias, "mixture-bias", Role::kOther},
    FineRoleFacts{FineRole::kKvProj, "kv-proj", Role::kKProj},
    FineRoleFacts{FineRole::kAttentionRouter, "attention-router", Role::kOther},
    FineRoleFacts{FineRole::kExpertQueries, "expert-queries", Role::kOther},
    FineRoleFacts{FineRole::kExpertOutputs, "expert-outputs", Role::kOther},
    FineRoleFacts{FineRole::kAttentionExpertsBias, "attention-experts-bias", Role::kOther},
    FineRoleFacts{FineRole::kLayerScale, "layer-scale", Role::kOther},
    FineRoleFacts{FineRole::kRouterInputScale, "router-input-scale", Role::kOther},
    FineRoleFacts{FineRole::kRouterExpertScale, "router-expert-scale", Role::kOther},
    FineRoleFacts{FineRole::kDenseOutputNorm, "dense-output-norm", Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kMixtureInputNorm, "mixture-input-norm", Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kMixtureOutputNorm, "mixture-output-norm", Role::kPostAttentionNorm},
    FineRoleFacts{FineRole::kLinearQueryDecay, "linear-query-decay", Role::kOther},
    FineRoleFacts{FineRole::kLinearKeyDecay, "linear-key-decay", Role::kOther},
    FineRoleFacts{FineRole::kLinearDiagonalDecay, "linear-diagonal-decay", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsNorm, "mixer-streams-norm", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsDown, "mixer-streams-down", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsUp, "mixer-streams-up", Role::kOther},
    FineRoleFacts{FineRole::kMixerStreamsInject, "mixer-streams-inject", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsNorm, "feed-forward-streams-norm", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsDown, "feed-forward-streams-down", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsUp, "feed-forward-streams-up", Role::kOther},
    FineRoleFacts{FineRole::kFeedForwardStreamsInject, "feed-forward-streams-inject", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsNorm, "head-streams-norm", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsDown, "head-streams-down", Role::kOther},
    FineRoleFacts{FineRole::kHeadStreamsUp, "head-streams-up", Role::kOther},
    FineRoleFacts{FineRole::kIndexerQk, "indexer-qk", Role::kIndexerQ},
    FineRoleFacts{FineRole::kNgramMultipliers, "ngram-multipliers", Role::kOther},
    FineRoleFacts{FineRole::kNgramSizes, "ngram-sizes", Role::kOther},
    FineRoleFacts{FineRole::kNgramOffsets, "ngram-offsets", Role::kOther},
    FineRoleFacts{FineRole::kNgramKeys, "ngram-keys", Role::kOther},
    FineRoleFacts{FineRole::kNgramValues, "ngram-values", Role::kOther},
    FineRoleFacts{FineRole::kNgramKeyNorm, "ngram-key-norm", Role::kOther},
    FineRoleFacts{FineRole::kNgramStateNorm, "ngram-state-norm", Role::kOther},
    FineRoleFacts{FineRole::kNgramOutputNorm, "ngram-output-norm", Role::kOther},
    FineRoleFacts{FineRole::kNgramConvolution, "ngram-convolution", Role::kOther},
};

static_assert(rows_match_enum(kFineRoles, &FineRoleFacts::fine, FineRole::kNgramConvolution));

template <typename Facts, std::size_t n, typename Id>
std::optional<Id> find_named(const std::array<Facts, n>& rows, Id Facts::*id,
                             std::string_view name) {
  for (const Facts& row : rows) {
    if (row.name == name) return row.*id;
  }
  return std::nullopt;
}

}  // namespace

std::string_view role_name(Role role) {
  return kRoles[static_cast<std::size_t>(role)].name;
}

std::optional<Role> find_role(std::string_view name) {
  return find_named(kRoles, &RoleFacts::role, name);
}

std::string_view fine_role_name(FineRole role) {
  return kFineRoles[static_cast<std::size_t>(role)].name;
}

std::optional<FineRole> find_fine_role(std::string_view name) {
  return find_named(kFineRoles, &FineRoleFacts::fine, name);
}

Role role_of(FineRole role) {
  return kFineRoles[static_cast<std::size_t>(role)].role;
}

}  // namespace ingot::formats
