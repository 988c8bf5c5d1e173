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
    RoleFacts{Role::kOther, "other"},
};

static_assert(rows_match_enum(kRoles, &RoleFacts::role, Role::kOther));

}  // namespace

std::string_view role_name(Role role) {
  return kRoles[static_cast<std::size_t>(role)].name;
}

std::optional<Role> find_role(std::string_view name) {
  for (const RoleFacts& row : kRoles) {
    if (row.name == name) return row.role;
  }
  return std::nullopt;
}

}  // namespace ingot::formats
