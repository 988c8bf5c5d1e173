#pragma once

#include <string>

#include "verify/report/report.h"

namespace ingot::cli {

/// What a terminal is told of a verification: the verdict first, then the weights by scheme and
/// role, the layers, what was generated, the worst tensors, the gates that fail and what is wrong
/// with the structure. What did not run is left out.
std::string verify_text(const verify::Report& report);

}  // namespace ingot::cli
