#pragma once

#include <cstdint>
#include <string>

#include "formats/experts/expert_view.h"
#include "formats/places/window.h"

// Stacks seen one by one.

namespace ingot::formats {

/// The side of a stack, or of its biases, that has the outputs of each expert.
std::size_t outputs_axis(const LogicalTensor& stack);
/// The outputs of member `m` among those of an expert in a stack of so many members.
Window rows_of_member(GateUpOrder order, std::uint64_t n_outputs, std::uint64_t n_members,
                      std::uint64_t m);

/// Why the experts of this stack cannot be seen one by one; empty: they can.
std::string separation_fault(const Checkpoint& source, const LogicalTensor& stack);
/// Adds the experts of a stack, one by one. The stack's separation_fault() must be empty, and its
/// matrices output-major where they are quantized.
void add_separated(const Checkpoint& source, const LogicalTensor& stack, ExpertView& experts);

}  // namespace ingot::formats
