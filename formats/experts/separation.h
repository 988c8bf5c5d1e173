#pragma once

#include <string>

#include "formats/experts/expert_view.h"

// Stacks seen one by one.

namespace ingot::formats {

/// Why the experts of this stack cannot be seen one by one; empty: they can.
std::string separation_fault(const Checkpoint& source, const LogicalTensor& stack);
/// Adds the experts of a stack, one by one. The stack's separation_fault() must be empty, and its
/// matrices output-major where they are quantized.
void add_separated(const Checkpoint& source, const LogicalTensor& stack, ExpertView& experts);

}  // namespace ingot::formats
