#include "formats/family/role_groups.h"

#include <array>

namespace ingot::formats {
namespace {

constexpr std::array kGroups = {
    RoleGroup{"experts", "routed experts, one by one or stacked", kExpertRoles},
    RoleGroup{"shared-experts", "shared experts", kSharedExpertRoles},
    RoleGroup{"dense-mlp", "MLPs of layers without experts", kDenseMlpRoles},
    RoleGroup{"mlp", "MLPs and experts of every kind, without routers", kMlpRoles},
    RoleGroup{"attention", "projections of attention, kv_b among them", kAttentionRoles},
    RoleGroup{"indexer", "wq_b and wk of the sparse-attention indexer", kIndexerRoles},
    RoleGroup{"linear", "mlp, attention and indexer: what releases quantize",
              kMlpRoles | kAttentionRoles | kIndexerRoles},
    RoleGroup{"norm", "norms of every kind", kNormRoles},
};

}  // namespace

std::span<const RoleGroup> role_groups() {
  return kGroups;
}

std::optional<RoleSet> find_roles(std::string_view word) {
  for (const RoleGroup& group : kGroups) {
    if (group.name == word) return group.roles;
  }
  if (const std::optional<Role> role = find_role(word)) return RoleSet{*role};
  return std::nullopt;
}

}  // namespace ingot::formats
