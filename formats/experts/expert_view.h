#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/experts/viewed_bytes.h"

// A checkpoint in the making whose stored tensors are views of another's.

namespace ingot::formats {

/// A stack, and the tensors that each expert gives to it, in the order of its outputs.
struct StackMembers {
  Role stack{};
  std::array<Role, 2> members{};
  std::size_t n = 1;
};
inline constexpr std::array kStacks = {
    StackMembers{Role::kExpertsGateUp, {Role::kExpertGate, Role::kExpertUp}, 2},
    StackMembers{Role::kExpertsGate, {Role::kExpertGate}},
    StackMembers{Role::kExpertsUp, {Role::kExpertUp}},
    StackMembers{Role::kExpertsDown, {Role::kExpertDown}},
    StackMembers{Role::kExpertsGateUpBias, {Role::kExpertGateBias, Role::kExpertUpBias}, 2},
    StackMembers{Role::kExpertsDownBias, {Role::kExpertDownBias}},
};

bool is_stack(const LogicalTensor& tensor);
/// True if the tensor is a weight or a bias of one routed expert.
bool is_single(const LogicalTensor& tensor);
/// The dialect whose names parts of single experts have: compressed-tensors where that of the
/// source knows only stacks.
const Dialect& dialect_of_singles(const Checkpoint& source);
/// The row that has every part of this tensor, by its name if one does; null: the dialect has no
/// names for them.
const StorageRow* storage_of(const Dialect& dialect, const Checkpoint& source,
                             const LogicalTensor& tensor);

/// The config of a view whose config.json is `document`: read as the source's was.
ModelConfig config_of_view(const Checkpoint& source, const Json& document);

/// Collects the tensors of the view. Stored tensors are in the order of the source's.
class ExpertView {
 public:
  explicit ExpertView(const Checkpoint& source) : source_(source) {}

  /// A stored tensor of this name and shape; all else is that of the origin of its first piece.
  std::uint32_t add(std::string name, Shape shape, View view);
  /// Adds a stored tensor unchanged, or under another name.
  std::uint32_t keep(std::uint32_t stored);
  std::uint32_t keep(std::uint32_t stored, std::string name);
  /// Adds a weight as it is, with its parts.
  void keep(LogicalTensor tensor);
  /// A weight whose parts are indices that add() and keep() gave.
  void add(LogicalTensor tensor) { tensors_.push_back(std::move(tensor)); }

  Checkpoint finish(std::shared_ptr<const Checkpoint> source, const Dialect& dialect);
  /// Likewise, with a Checkpoint::draft_of_view() that has words of its own.
  Checkpoint finish(std::shared_ptr<const Checkpoint> source, Draft draft);

 private:
  struct ViewedPart {
    StoredTensor tensor;
    View view;
  };

  const Checkpoint& source_;
  std::vector<ViewedPart> parts_;
  std::vector<LogicalTensor> tensors_;
};

}  // namespace ingot::formats
