#pragma once

#include <memory>
#include <vector>

#include "formats/changes/value_change.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::verify {

/// A source as adapters and edits make it, for a comparison with an output that has them: a
/// tensor that changes is plain numbers, made as they are read, in FP64 and rounded to FP32 once.
/// They are in the dtype that the output has the tensor in where that is plain, else in FP32: what
/// an encoder gets. `output` may be null. Throws, collected, what the editors find wrong.
formats::Checkpoint with_changed_values(
    formats::Checkpoint whole,
    const std::vector<std::shared_ptr<const formats::ValueEditor>>& editors,
    const formats::Checkpoint* output);

}  // namespace ingot::verify
