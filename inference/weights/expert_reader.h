#pragma once

#include <cstddef>
#include <cstdint>

#include "inference/weights/expert_store.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// Reads routed experts, whether each has tensors of its own (`mlp.experts.E.gate_proj.weight`) or
/// those of a layer are stacked (`mlp.experts.gate_up_proj` [E, 2I, D], gate rows first, and
/// `mlp.experts.down_proj` [E, D, I]). Safe from many threads.
class ExpertReader {
 public:
  /// `store` must outlive this.
  ExpertReader(const WeightStore& store, const ExpertShape& shape)
      : store_(store),
        n_experts_(shape.n_experts),
        hidden_(shape.hidden),
        intermediate_(shape.intermediate) {}

  /// Bytes that the expert takes in memory. Errors as WeightStore::read.
  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t layer, std::uint32_t expert) const;
  [[nodiscard]] Expert read(std::uint32_t layer, std::uint32_t expert, std::size_t threads) const;

 private:
  struct Parts;
  [[nodiscard]] Parts parts_of(std::uint32_t layer, std::uint32_t expert) const;

  const WeightStore& store_;
  std::size_t n_experts_, hidden_, intermediate_;
};

}  // namespace ingot::inference
