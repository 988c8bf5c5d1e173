#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "inference/parallel/comm.h"
#include "inference/parallel/mpi_module.h"
#include "inference/parallel/rank_view.h"
#include "shard/cut/topology.h"

namespace ingot::inference {

struct MpiCommOptions {
  /// all_reduce() by MPI's own reduction: fewer bytes, and sums whose order, and so whose last
  /// bits, are MPI's own.
  bool own_sums = false;
  /// Asked while a rank waits; true ends the wait with kInterrupted.
  std::function<bool()> stop_requested;
};

/// Ranks that are processes, which meet over MPI. In an exchange every rank sends one message to
/// every other of the group, also an empty one, as soon as the exchange is begun, and asks of each
/// that comes how large it is: so nothing waits in start(), and no counts are sent first. A message
/// has less than 2^31 bytes, else kLimit. While ranks wait they leave the processor to others, so
/// that there may be more ranks than processors.
class MpiComm final : public Comm {
 public:
  /// Makes the groups; all ranks of the launch call it together. `rank`: that of MPI, as the module
  /// has given it. `topology` has as many ranks as the launch.
  MpiComm(const MpiModule& module, const shard::Topology& topology, std::uint32_t rank,
          MpiCommOptions options = {});

  [[nodiscard]] std::size_t rank(Group group) const override { return at(group).place.rank; }
  [[nodiscard]] std::size_t size(Group group) const override { return at(group).place.size; }

  void all_reduce(const Collective& what, std::span<float> values) override;

 private:
  struct Member {
    GroupPlace place;
    std::uint32_t number = 0;  // number in the module
    std::vector<Bytes> sent;   // until they have left; the own bytes are kept for end_exchange
  };

  void begin_exchange(const Collective& what, std::vector<Bytes> send) override;
  std::vector<Bytes> end_exchange(const Collective& what) override;
  void wait_until(const std::function<bool()>& is_so) const;

  [[nodiscard]] const Member& at(Group group) const {
    return members_[static_cast<std::size_t>(group)];
  }
  Member& at(Group group) { return members_[static_cast<std::size_t>(group)]; }

  const MpiModule& module_;
  MpiCommOptions options_;
  std::array<Member, kGroups> members_;
};

}  // namespace ingot::inference
