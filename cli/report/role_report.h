#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// Roles and groups of roles as rules take them: a row per selector, with its meaning.
formats::Json role_rows();
/// Rows of the tensors that each selector, and each run of layers, selects in a checkpoint:
/// tensors, bytes, schemes, and the first tensor. Selectors that match nothing are left out.
formats::Json role_rows_of(const formats::Checkpoint& checkpoint);

}  // namespace ingot::cli
