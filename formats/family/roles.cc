#include "formats/family/roles.h"

#include <array>

namespace ingot::formats {
namespace {

struct RoleFacts {
  Role role;
  std::string_view name;
};
constexpr std::array kRoles = {
#define X(role, word) RoleFacts{Role::role, word},
    INGOT_ROLES(X)
#undef X
};

struct FineRoleFacts {
  FineRole fine;
  std::string_view name;
  Role role;
};
constexpr std::array kFineRoles = {
#define X(role, word, coarse) FineRoleFacts{FineRole::role, word, Role::coarse},
    INGOT_FINE_ROLES(X)
#undef X
};

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
