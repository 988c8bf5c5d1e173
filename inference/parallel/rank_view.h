#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/checkpoint/checkpoint.h"
#include "inference/parallel/comm.h"
#include "inference/weights/linear.h"
#include "shard/cut/expert_map.h"
#include "shard/cut/stages.h"
#include "shard/cut/topology.h"

namespace ingot::inference {

/// Part of a model that a process computes: how the model is cut, and the rank of the process. By
/// default it is the whole model.
struct RankView {
  shard::Topology topology = {};
  std::uint32_t rank = 0;
  shard::Stages stages = {};                     ///< layers of each; empty: one stage
  std::optional<shard::ExpertMap> experts = {};  ///< nullopt: contiguous blocks
  bool shared_is_whole = false;                  ///< every rank has the whole shared experts

  [[nodiscard]] shard::RankPosition at() const { return topology.position(rank); }
  [[nodiscard]] std::size_t tp_rank() const { return at().tp_rank; }
  [[nodiscard]] std::size_t tp_size() const { return topology.tp; }
  [[nodiscard]] std::size_t stage() const { return at().stage; }
  [[nodiscard]] std::size_t n_stages() const { return topology.pp; }
  [[nodiscard]] bool is_last_stage() const { return at().stage + 1 == topology.pp; }
  /// True if the ranks that share the experts are those that hold the same tokens, so that no token
  /// has to travel.
  [[nodiscard]] bool experts_meet_in_tensor_group() const {
    return topology.ep * topology.etp == topology.tp;
  }
};

/// The rank whose directory `source` is, as its manifest says; of any other source all of the
/// model. Throws kCorrupt for an expert map that no map is.
RankView rank_view(const formats::Checkpoint& source);

/// The group of its kind that a rank belongs to, and its place in it.
struct GroupPlace {
  std::size_t index = 0;
  std::size_t rank = 0, size = 1;
};
GroupPlace group_place(const shard::Topology& topology, std::uint32_t rank, Group group);

/// The run of `count` equal things that this rank of the tensor group holds. Throws kUnsupported
/// naming `what` when the ranks do not divide them.
Range tensor_part(const RankView& rank, std::size_t count, std::string_view what);

/// The rank's key heads. There may be fewer than ranks: then neighbours share one.
Range key_head_part(const RankView& rank, std::size_t count);

/// The run of an expert's `count` inner features that this rank holds.
Range expert_part(const RankView& rank, std::size_t count);

/// The main layers of the rank's stage, of `count` in all.
Range stage_part(const RankView& rank, std::size_t count);

/// Returns the expert ranks that hold each of `count` experts. Throws kInvalidArgument when blocks
/// do not divide them.
shard::ExpertMap expert_places(const RankView& rank, std::size_t count);

}  // namespace ingot::inference
