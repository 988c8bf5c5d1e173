#pragma once

#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// True if the output holds every value of a tensor that is not dropped, whatever its codes and
/// scales are. A value of a quantized source is what its codes and scales decode to, in F32. False:
/// this is not known before the tensor is converted.
bool is_exact_by_rule(const Plan& plan, const PlannedTensor& planned);

/// The names of the roles, by whether their tensors are exact by rule and by the schemes of source
/// and output; those that are exact first.
using RolesByExactness = std::map<std::tuple<bool, formats::SchemeId, formats::SchemeId>,
                                  std::set<std::string_view>, std::greater<>>;
RolesByExactness roles_by_exactness(const Plan& plan);

}  // namespace ingot::convert
