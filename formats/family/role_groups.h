#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "formats/family/family.h"

// Roles that rules, reports and default recipes speak of together.

namespace ingot::formats {

/// A set of roles.
class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= bit(role);
  }
  /// The roles of which a predicate holds.
  static constexpr RoleSet of(bool (*is_in)(Role)) {
    RoleSet set;
    for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(Role::kOther); ++i) {
      if (is_in(static_cast<Role>(i))) set.bits_ |= bit(static_cast<Role>(i));
    }
    return set;
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

inline constexpr RoleSet kExpertRoles = RoleSet::of(is_routed_expert);
inline constexpr RoleSet kSharedExpertRoles = {Role::kSharedGate, Role::kSharedUp,
                                               Role::kSharedDown};
inline constexpr RoleSet kDenseMlpRoles = {Role::kDenseGate, Role::kDenseUp, Role::kDenseDown};
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

/// The roles that a word names: those of a group, or one. Nothing for any other word.
std::optional<RoleSet> find_roles(std::string_view word);

}  // namespace ingot::formats
