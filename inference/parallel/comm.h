#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace ingot::inference {

/// The ranks that take part in a collective.
enum class Group : std::uint8_t {
  kTensor,    ///< ranks that hold the same tokens
  kExpert,    ///< ranks of a stage whose experts together are all of them, once
  kPipeline,  ///< ranks in the same place of every stage, in the order of the stages
  kWorld,     ///< all ranks
};
inline constexpr std::size_t kGroups = 4;
std::string_view group_name(Group group);

using Bytes = std::vector<std::byte>;

/// One of the meetings of a step. Every rank of the group comes for the same ones in the same
/// order, also with nothing to send.
struct Collective {
  static constexpr std::size_t kNoLayer = ~std::size_t{0};

  Group group = Group::kWorld;
  std::string_view name;  ///< a literal, as in `attention sum`
  std::size_t layer = kNoLayer;

  auto operator<=>(const Collective& other) const {
    return std::tuple(layer, name, group) <=> std::tuple(other.layer, other.name, other.group);
  }
  bool operator==(const Collective&) const = default;
};

// Bytes that a rank sends in a step, of FP32, for n rows of a tensor group of T ranks, hidden size
// D, X slices of an expert, m requested rows and V words:
//   embedding, attention, MLP and shared expert sums (tensor): 4 n D (T - 1)
//   expert tokens (expert), for its n / T rows, X times: 4 D for each destination with at least one
//     of a row's experts, 8 for each use of an expert, 4 for each message
//   expert outputs (expert): 4 D for each use that it received
//   expert sums (tensor): 4 (n / T) D (T - 1); where the tensor group has all experts, one expert
//     sum of 4 n D (T - 1) is in place of tokens, outputs, these sums and the shared expert sum
//   logits (tensor): 4 m (V / T) (T - 1)
//   hidden states (pipeline): 4 n D to the next stage; results of the last one: 4 m V to each
//   layer of a stage, in `verify` (pipeline): 4 n D, 8 for each expert chosen and 4 for each
//     position chosen, to each stage
//   next step (all): 120 to each rank

/// The bytes that a rank has sent to others in its collectives. Bytes that stay on the rank do not
/// count, nor do those that a transport adds (sizes in front of the bytes).
struct Traffic {
  std::uint64_t n_meetings = 0;
  std::uint64_t n_messages = 0;  ///< messages with at least one byte
  std::uint64_t n_bytes = 0;
  /// Time between start() and finish(), which work has hidden, and time within finish().
  std::chrono::nanoseconds hidden{0}, waited{0};
};
using TrafficByCollective = std::map<Collective, Traffic>;
/// The sum over all collectives.
Traffic total(const TrafficByCollective& traffic);

/// How ranks meet: an exchange within a group, in two halves so that work can hide it. All other
/// collectives are functions below. One thread of a rank calls it.
class Comm {
 public:
  Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm() = default;

  /// The place of this rank in a group, and how many the group has.
  [[nodiscard]] virtual std::size_t rank(Group group) const = 0;
  [[nodiscard]] virtual std::size_t size(Group group) const = 0;

  /// Begins an exchange: send[r] goes to rank r of the group. A group has at most one exchange
  /// under way; those of other groups may overlap with it.
  void start(const Collective& what, std::vector<Bytes> send);
  /// Waits for the exchange that start() began with the same `what`, and returns the bytes of each
  /// rank of the group. Throws kInterrupted on every rank that waits when another rank has failed.
  std::vector<Bytes> finish(const Collective& what);

  /// Sums `values` over the ranks of a group, added in rank order: the same bits on all of them, in
  /// every run and over every transport. Each rank sends all its values to every other one. A
  /// transport may offer a reduction of its own instead, which promises no order.
  virtual void all_reduce(const Collective& what, std::span<float> values);

  [[nodiscard]] const TrafficByCollective& traffic() const { return traffic_; }

 protected:
  /// Both halves of exchange(). `what` is named in errors, such as ranks in different collectives.
  virtual void begin_exchange(const Collective& what, std::vector<Bytes> send) = 0;
  virtual std::vector<Bytes> end_exchange(const Collective& what) = 0;
  /// Counts a meeting, and returns the traffic to add to; for collectives that are no exchange.
  Traffic& count(const Collective& what);

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    bool is = false;
    Clock::time_point since;
  };
  TrafficByCollective traffic_;
  std::array<UnderWay, kGroups> under_way_;
};

/// One process: every group is only this rank.
class OneRank final : public Comm {
 public:
  [[nodiscard]] std::size_t rank(Group /*group*/) const override { return 0; }
  [[nodiscard]] std::size_t size(Group /*group*/) const override { return 1; }

 private:
  void begin_exchange(const Collective& what, std::vector<Bytes> send) override;
  std::vector<Bytes> end_exchange(const Collective& what) override;

  std::array<std::vector<Bytes>, kGroups> kept_;
};

/// Runs start() and finish() at once.
std::vector<Bytes> exchange(Comm& comm, const Collective& what, std::vector<Bytes> send);

/// The values of every rank of the group, in rank order. Ranks may give different amounts.
std::vector<float> all_gather(Comm& comm, const Collective& what, std::span<const float> mine);

/// The bytes of rank `from` of the group, on all its ranks; likewise lists of numbers.
Bytes broadcast(Comm& comm, const Collective& what, std::size_t from, Bytes bytes);
using Lists = std::vector<std::vector<std::int32_t>>;
Lists broadcast(Comm& comm, const Collective& what, std::size_t from, const Lists& lists);

/// Sets `values` to those of rank `from` of the group; every rank has the same number of them.
void broadcast(Comm& comm, const Collective& what, std::size_t from, std::span<float> values);

/// Sends `bytes` of rank `from` of the group to the next one, where they are returned. All ranks of
/// the group meet; the others give and get no bytes.
Bytes hand_over(Comm& comm, const Collective& what, std::size_t from, Bytes bytes);

/// The bytes of some values, and values of bytes that are `to` in size (else kInternal).
Bytes bytes_of(std::span<const float> values);
void copy_values(std::span<const std::byte> from, std::span<float> to);

}  // namespace ingot::inference
