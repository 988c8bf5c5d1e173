#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/align/cut_need.h"

namespace ingot::shard {

/// Tensors whose cut does not fit, told by kind: role, scheme, width and number of slices.
class AlignmentRefusals {
 public:
  AlignmentRefusals(const formats::ModelConfig& config, const Slicing& slicing)
      : config_(config), is_deepseek_mp(slicing.is_deepseek_mp) {}

  void add(const TensorToAlign& tensor);
  /// A stack to be padded, of which a block reaches from gate to up.
  void add_joined(const TensorToAlign& tensor);
  /// One kUnsupported per kind, in the order of their first tensors.
  void throw_if_any() const;

 private:
  struct Refusal {
    const TensorToAlign* first = nullptr;
    CutNeed need;
    bool is_joined = false;
    std::uint64_t count = 0;
  };
  void add(const TensorToAlign& tensor, bool is_joined);
  [[nodiscard]] static std::string fact(const Refusal& refusal);
  [[nodiscard]] std::string remedies(const Refusal& refusal) const;
  [[nodiscard]] std::uint32_t most_slices(const Refusal& refusal) const;

  const formats::ModelConfig& config_;
  const bool is_deepseek_mp;
  std::vector<Refusal> refusals_;
};

}  // namespace ingot::shard
