#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/container/tensor.h"

namespace ingot::formats {

/// Stored tensors by name. Sorted rather than hashed: no input makes it slow, and memory is 4 bytes
/// per tensor.
class StoredNames {
 public:
  /// `stored` must outlive this.
  explicit StoredNames(std::span<const StoredTensor> stored)
      : stored_(stored), order_(stored.size()) {
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return stored_[a].name < stored_[b].name;
    });
  }

  /// Index of the tensor of this name; of several the first in source order.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const {
    const auto at = std::lower_bound(
        order_.begin(), order_.end(), name,
        [&](std::uint32_t i, std::string_view wanted) { return stored_[i].name < wanted; });
    if (at == order_.end() || stored_[*at].name != name) return std::nullopt;
    return *at;
  }

  /// All indices, by name.
  [[nodiscard]] std::span<const std::uint32_t> sorted() const { return order_; }

 private:
  std::span<const StoredTensor> stored_;
  std::vector<std::uint32_t> order_;
};

}  // namespace ingot::formats
