#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// Roles and groups of roles as rules take them: a row per selector, with what it means.
formats::Json role_rows();
/// What each of them selects in a checkpoint, and each run of layers: tensors, bytes, schemes, and
/// the first tensor. Selectors that match nothing are left out.
formats::Json role_rows_of(const formats::Checkpoint& checkpoint);

}  // namespace ingot::cli
