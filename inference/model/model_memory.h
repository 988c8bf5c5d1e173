#pragma once

#include <cstdint>

#include "inference/model/step/step.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// The routed experts that a rank of this model holds.
ExpertShape expert_shape(const ModelSpec& spec, const RankView& rank, bool with_mtp);

/// Bytes that weights take in memory, as stored; of a source the weights that any rank reads.
struct WeightNeed {
  std::uint64_t resident = 0;     ///< everything but routed experts
  std::uint64_t experts = 0;      ///< all routed experts
  std::uint64_t two_experts = 0;  ///< the least that must be held of them at once
};
WeightNeed need_of_weights(const WeightStore& weights, const ExpertShape& experts, bool with_mtp,
                           const ModelSpec& spec);

/// Returns the bytes of one layer, whose routed experts are `experts`.
WeightNeed need_of_layer(const WeightStore& weights, const ExpertShape& experts,
                         std::uint32_t layer);

/// Bytes for experts under a limit for all weights; 0: no limit. Throws kLimit, saying what would
/// be enough, when the limit does not hold what is always resident and two experts.
std::uint64_t expert_budget(const WeightNeed& need, std::uint64_t limit);

/// Makes room in the cache for rows that follow on what it holds. Throws kInvalidArgument, naming
/// the positions, for rows that leave a gap; kLimit when the capacity does not suffice. Then no
/// sequence is longer than where its rows begin.
void reserve_rows(const StepRows& rows, KvCache& cache);

}  // namespace ingot::inference
