#pragma once

#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"
#include "verify/report/document.h"

namespace ingot::cli {

/// Which roles of a plan are exact by rule, by the schemes of source and output.
verify::Table exactness_table(const convert::Plan& plan);
formats::Json exactness_json(const convert::Plan& plan);

}  // namespace ingot::cli
