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
