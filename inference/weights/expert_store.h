#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// The matrices of one routed expert. There may be no gate; there is no up where its rows and those
/// of the gate alternate, in `gate`.
struct Expert {
  Linear gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;  ///< biases; empty for experts without any
  [[nodiscard]] std::uint64_t n_bytes() const {
    return gate.n_bytes() + up.n_bytes() + down.n_bytes() +
           (gate_bias.size() + up_bias.size() + down_bias.size()) * sizeof(float);
  }
};

/// A routed expert of a layer.
struct ExpertId {
  std::uint32_t layer = 0, expert = 0;
  auto operator<=>(const ExpertId&) const = default;
};

/// The experts that a rank holds, and its part of each.
struct ExpertShape {
  std::vector<ExpertId> experts;  ///< ascending; MTP layers included
  std::size_t n_experts = 0;      ///< experts of a layer, over all ranks
  /// Experts of layers that have fewer.
  std::map<std::uint32_t, std::size_t> fewer = {};
  std::size_t hidden = 0, intermediate = 0;
  bool has_gate = true;  ///< experts have gate, up and down; else only up and down
  Range inner;           ///< intermediate features that the rank holds
  /// Biases of experts; the bias of down is only on the rank with the first inner features.
  bool has_biases = false;

  /// Returns the number of experts of a layer, over all ranks.
  [[nodiscard]] std::size_t experts_in(std::uint32_t layer) const {
    const auto own = fewer.find(layer);
    return own == fewer.end() ? n_experts : own->second;
  }
  /// Returns the shape for the experts of only one layer.
  [[nodiscard]] ExpertShape of_layer(std::uint32_t layer) const;
};

/// Counts of the store's work.
struct ExpertCounters {
  std::uint64_t hits = 0;    ///< get() found the expert in memory, or on its way there
  std::uint64_t misses = 0;  ///< calls of get() that had to read
  std::uint64_t reads = 0;   ///< experts read, ahead or by get()
  /// Bytes of experts, as they are held; experts read again count again.
  std::uint64_t bytes_read = 0;
};

/// Routed experts in memory, up to a budget: all of them, read at once, when they fit; else those
/// used last (which go first: ExpertSlots), read when the router has chosen them. Held experts
/// never go. The budget is exceeded only if held experts leave no room for one that a caller asks
/// for, by the bytes of that one, and only until something is released. Safe from many threads.
class ExpertStore {
 public:
  /// Bytes of all experts, and of the largest one.
  struct Need {
    std::uint64_t all = 0, largest = 0;
  };
  static Need need(const WeightStore& store, const ExpertShape& shape);

  /// Keeps up to `budget` bytes; throws kLimit, with a budget that would be enough, when it is less
  /// than two of the largest. `store` must outlive this. `threads` read at a time.
  ExpertStore(const WeightStore& store, ExpertShape shape, std::uint64_t budget,
              std::size_t threads);
  ~ExpertStore();

  /// True when every expert is in memory for good.
  [[nodiscard]] bool all_resident() const;
  /// Announces the experts that a layer is about to use, in order of use: they are read in the
  /// background, as far as the budget allows with the experts in use and those that this call and
  /// the one before it have announced.
  void prefetch(std::uint32_t layer, std::span<const std::uint32_t> experts);
  /// Returns the expert, read now if need be; waits for a read that is on its way. It stays while
  /// the pointer lives, beyond this store if need be. The error of a background read is thrown
  /// here, once; the next call tries again.
  std::shared_ptr<const Expert> get(std::uint32_t layer, std::uint32_t expert);
  [[nodiscard]] ExpertCounters counters() const;
  /// Bytes of the experts in memory and of those being read.
  [[nodiscard]] std::uint64_t bytes_held() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::inference
