#pragma once

#include <span>
#include <string_view>

#include "formats/family/family.h"

namespace ingot::formats {

/// The usual meaning of a tensor's name.
struct UsualSpelling {
  Role role = Role::kOther;
  bool is_known = false;  ///< false: no spelling that is known; the role is kOther
};

/// Judges a pattern, as families have it, by the words of role names and by their place (attention,
/// experts, shared experts, outside the layers).
UsualSpelling usual_spelling(std::string_view pattern);

/// The row that families of the program have for this place of a layer, one of several that agree
/// on its role; null: there is none. Reads every table.
const TensorRule* row_of_tables(std::string_view pattern);

/// The name of a matrix of one expert where it is not stacked.
struct SingleExpert {
  std::string_view word;
  Role role{};
};
/// Those of which a stack of this name consists, in the order of its outputs.
std::span<const SingleExpert> usual_singles(std::string_view stack);

/// The usual treatment of a role's rows in families.
struct UsualTreatment {
  Cut cut = Cut::kReplicated;
  Fuse fuse = Fuse::kNone;
  bool is_linear = false;              ///< an FP8 release quantizes it
  std::string_view out = {}, in = {};  ///< likely widths, with ", " between them
};
UsualTreatment usual_treatment(Role role);

}  // namespace ingot::formats
