#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Whether the output holds every value of a planned tensor, as far as headers tell. A value of a
/// quantized source is that of its codes and scales, decoded in F32.
struct Exactness {
  enum class Kind : std::uint8_t {
    kAlways,   ///< every value, whatever the codes and scales are
    kWhere,    ///< every value under `condition`, which scales and codes decide
    kRounded,  ///< values are rounded to codes of the target; a few may happen to be codes
  };
  Kind kind = Kind::kAlways;
  std::string condition;  ///< of kWhere: "scales of a block are equal"

  friend bool operator<(const Exactness& a, const Exactness& b) {
    return std::tie(a.kind, a.condition) < std::tie(b.kind, b.condition);
  }
};
/// "yes", "where ...", "no, rounded to codes".
std::string exactness_text(const Exactness& exactness);

/// Exactness of one tensor of the plan that is not dropped, by headers.
Exactness exactness_of(const Plan& plan, const PlannedTensor& planned);

/// The names of roles by exactness and by the schemes of source and output.
using RolesByExactness = std::map<std::tuple<Exactness, formats::SchemeId, formats::SchemeId>,
                                  std::set<std::string_view>>;
RolesByExactness roles_by_exactness(const Plan& plan);

}  // namespace ingot::convert
