#pragma once

#include <optional>
#include <string_view>

#include "formats/family/family.h"

namespace ingot::formats {

/// What the name of a tensor says of it in most models.
struct UsualSpelling {
  Role role = Role::kOther;
  bool is_known = false;  ///< false: no spelling that is known; the role is kOther
};

/// By a pattern, as families have it: words that names of roles are spelled with, and where they
/// stand (attention, experts, shared experts, outside the layers).
UsualSpelling usual_spelling(std::string_view pattern);

/// What rows of a role have in most families.
struct UsualTreatment {
  Cut cut = Cut::kReplicated;
  Fuse fuse = Fuse::kNone;
  bool is_linear = false;              ///< an FP8 release quantizes it
  std::string_view out = {}, in = {};  ///< likely widths, with ", " between them
};
UsualTreatment usual_treatment(Role role);

}  // namespace ingot::formats
