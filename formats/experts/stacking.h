#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/experts/expert_view.h"

namespace ingot::formats {

/// Single experts seen stacked.
class Stacking {
 public:
  /// `source` must outlive this.
  explicit Stacking(const Checkpoint& source);

  /// Why they cannot be, naming one; empty: they can.
  [[nodiscard]] std::string fault() const;
  /// Adds the stacks. fault() must be empty.
  void add_to(ExpertView& experts) const;

 private:
  /// The members of one stack to be, [expert][member].
  struct Gathered {
    const TensorRule* row = nullptr;
    std::size_t n_members = 1;
    std::vector<const LogicalTensor*> tensors;

    [[nodiscard]] const LogicalTensor& first() const { return *tensors.front(); }
  };

  [[nodiscard]] std::string fault_of(const Gathered& gathered) const;
  void add(const Gathered& gathered, ExpertView& experts) const;

  const Checkpoint& source_;
  std::map<std::pair<std::uint32_t, Role>, Gathered> stacks_;  // stacks by layer
};

}  // namespace ingot::formats
