#pragma once

#include "formats/checkpoint/checkpoint.h"

// Stacked experts seen one by one. Where a stack is output-major, each expert's gate, up and down
// projection is a range of its bytes, so nothing is read or moved: a stack becomes names.

namespace ingot::formats {

/// Whether some routed experts are stacked.
bool holds_stacks(const TensorSource& source);
/// Whether some routed expert has tensors of its own.
bool holds_single_experts(const TensorSource& source);
/// Whether every stack can be seen as single experts: it is plain, and by the family's rows
/// output-major with gate rows before up rows. The family decides, never a shape.
bool can_separate(const TensorSource& source);

/// The same model with a tensor per expert and projection in place of each stack, under the names
/// of the family's rows. Throws kUnsupported naming a stack that can_separate() does not hold for.
Checkpoint with_single_experts(Checkpoint source, const OpenOptions& options);

}  // namespace ingot::formats
