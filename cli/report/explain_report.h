#pragma once

#include <string>
#include <string_view>

#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// The rule that fires for one tensor, the action on it, and its places in the source and in the
/// output. Throws kNotFound for a tensor that the source has not.
formats::Json explain_json(const convert::Plan& plan, std::string_view tensor);
std::string explain_text(const formats::Json& explained);

}  // namespace ingot::cli
