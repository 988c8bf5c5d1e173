#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::verify {

/// The evidence of a stack's values on its orientation.
///
/// Experts of a layer read the same hidden state, and write to it: its channels are strong or weak
/// for all of them alike, while the channels inside of an expert are its own. So the strengths of
/// channels (the logarithm of the sum of squares) agree between experts on the side of the hidden
/// state only. Gate and up have each a mean of their own, which is left out. Agreement is the mean
/// correlation over pairs of experts; without any it has the variance 1 / (pairs x channels), which
/// says how sure the difference of both sides is.
struct StackSides {
  std::string tensor;    ///< an example of its kind
  bool is_told = false;  ///< values tell the orientation, at three standard deviations
  bool is_as_row_says = true;
  double sure = 0.5;  ///< probability that the side with more agreement is the hidden one
  double hidden = 0, inner = 0;  ///< agreement on the sides that are so by the row
};

/// The first stack of each kind, of at most 16 of its experts. Reads and decodes these.
std::vector<StackSides> measure_stacks(const formats::Checkpoint& checkpoint);

/// How outputs of gate and up follow one another in stacks of both, by the strengths of their
/// channels: those of gates and those of ups have each a mean of their own, so halves that differ
/// are a half of each, and even and odd channels that differ are in turn. Nullopt where values do
/// not tell, or stacks contradict one another. Reads and decodes up to 16 experts of the first
/// stack of each kind.
std::optional<formats::GateUpOrder> measure_gate_up(const formats::Checkpoint& checkpoint);

/// The words that a message puts behind the tensor's name.
std::string stack_text(const StackSides& sides);

}  // namespace ingot::verify
