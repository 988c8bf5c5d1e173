#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// Routed experts in another form than they are stored in: one by one, stacked, or with the matrices
// of a stack turned. The family's rows define a form: GateUpOrder, StackOrder where a shape does
// not tell it, and the roles of a stack and of its members. No value changes: bytes are gathered as
// they are read, and scales and biases go with their rows.

namespace ingot::formats {

/// True if some routed experts are stacked.
bool holds_stacks(const TensorSource& source);
/// True if some stacks have their inputs first.
bool holds_input_major_stacks(const TensorSource& source);
/// True if some routed expert has tensors of its own.
bool holds_single_experts(const TensorSource& source);

/// Why the stacks cannot be seen one by one, naming the first; empty: they can. The family must
/// have rows for single experts, and no block of scales may belong to gate and to up in part.
std::string separation_fault(const Checkpoint& source);
/// Why single experts cannot be seen stacked; empty: they can. All of a layer must be here, in one
/// scheme and shape, and their scales be rows, or blocks of rows, of the stack's.
std::string stacking_fault(const Checkpoint& source);

/// Returns the model with a tensor per expert and projection in place of each stack, under the
/// names of the family's rows and of the dialect's parts (compressed-tensors' where the dialect
/// knows only stacks). Throws kUnsupported with separation_fault().
Checkpoint with_single_experts(std::shared_ptr<const Checkpoint> source);
/// Returns the model with stacks in place of single experts, output-major, gate and up in the order
/// of the family. Throws kUnsupported with stacking_fault().
Checkpoint with_stacked_experts(std::shared_ptr<const Checkpoint> source);
/// Returns the model with the matrices of these stacks, indices into tensors(), the other way
/// round. Codes and scales are turned alike: a group of 1 x 32 becomes one of 32 x 1.
Checkpoint with_turned_stacks(std::shared_ptr<const Checkpoint> source,
                              std::span<const std::uint32_t> stacks);

/// Returns the modules that an expert of a stack has where experts are one by one: gate and up
/// apart, by the family's rows; of a family without any by usual names, `EXPERTS.17.gate_proj`.
std::vector<std::string> single_modules(const Checkpoint& source, const LogicalTensor& stack,
                                        std::uint32_t expert);

/// How a model that was made of another has its experts.
struct ExpertsHeld {
  bool has_singles = false;
  /// Stacks by name; true where the scheme of one turns_stacks(), nullopt where it is no
  /// is_usual_stack(): then the source is compared as it is.
  std::map<std::string, std::optional<bool>, std::less<>> stacks;
};
ExpertsHeld experts_held(const TensorSource& model);

/// Returns the source with experts in the form of an output of the source: one by one or stacked,
/// where that view is possible, and each stack in the output's order.
Checkpoint with_experts_as_in(Checkpoint source, const ExpertsHeld& held);

}  // namespace ingot::formats
