#pragma once

#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"

namespace ingot::library {

/// The tensors that an output has, and its config.json.
formats::Json plan_json(const convert::Plan& plan);

}  // namespace ingot::library
