#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "formats/family/roles.h"

// Roles that rules, reports and default recipes speak of together.

namespace ingot::formats {

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
