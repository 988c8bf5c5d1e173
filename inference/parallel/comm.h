#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "inference/weights/linear.h"

namespace ingot::inference {

/// Which part of a model a process computes. Ranks of one tensor group hold the same tokens;
/// experts are dealt over the expert group in equal runs.
struct RankView {
  std::size_t tp_rank = 0, tp_size = 1;
  std::size_t ep_rank = 0, ep_size = 1;
};

enum class Group : std::uint8_t { kTensor, kExpert };

/// Collectives among the ranks of a group. Every rank of a group calls them in the same order, also
/// with nothing to send. Results are the same bits on all ranks.
class Comm {
 public:
  virtual ~Comm() = default;
  /// Sum over the ranks, added in rank order.
  virtual void all_reduce(Group group, std::span<float> values) = 0;
  /// What every rank gives, in rank order. Ranks may give different amounts.
  virtual std::vector<float> all_gather(Group group, std::span<const float> mine) = 0;
  /// `send[r]` goes to rank r of the group; returns what came from each.
  virtual std::vector<std::vector<std::byte>> all_to_all_v(
      Group group, const std::vector<std::vector<std::byte>>& send) = 0;
};

/// One process: every collective gives back what it was given.
class OneRank final : public Comm {
 public:
  void all_reduce(Group /*group*/, std::span<float> /*values*/) override {}
  std::vector<float> all_gather(Group /*group*/, std::span<const float> mine) override {
    return {mine.begin(), mine.end()};
  }
  std::vector<std::vector<std::byte>> all_to_all_v(
      Group /*group*/, const std::vector<std::vector<std::byte>>& send) override {
    return send;
  }
};

/// The run of `count` equal things that this rank of the tensor group holds. kUnsupported naming
/// `what` when the ranks do not divide them.
Range tensor_part(const RankView& rank, std::size_t count, std::string_view what);

/// The rank's key heads. There may be fewer than ranks: then neighbours share one.
Range key_head_part(const RankView& rank, std::size_t count);

/// The run of `count` experts of this rank of the expert group. kUnsupported, too, unless tensor
/// groups fill expert groups evenly.
Range expert_part(const RankView& rank, std::size_t count);

}  // namespace ingot::inference
