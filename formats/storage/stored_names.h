#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/container/tensor.h"

namespace ingot::formats {

/// `X` of `X.PART`.
inline std::string_view module_stem(std::string_view name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

/// Stored tensors by name. Sorted rather than hashed: no input makes it slow, and memory is 20
/// bytes per tensor.
class StoredNames {
 public:
  /// `stored` must outlive this.
  explicit StoredNames(std::span<const StoredTensor> stored) {
    std::vector<std::pair<std::string_view, std::uint32_t>> sorted;
    sorted.reserve(stored.size());
    for (const StoredTensor& tensor : stored)
      sorted.emplace_back(tensor.name, static_cast<std::uint32_t>(sorted.size()));
    std::sort(sorted.begin(), sorted.end());
    names_.reserve(sorted.size());
    order_.reserve(sorted.size());
    for (const auto& [name, index] : sorted) {
      names_.push_back(name);
      order_.push_back(index);
    }
  }

  /// Index of the tensor of this name; of several the first in source order.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const {
    const auto at = std::lower_bound(names_.begin(), names_.end(), name);
    if (at == names_.end() || *at != name) return std::nullopt;
    return order_[static_cast<std::size_t>(at - names_.begin())];
  }

  /// All indices, by name.
  [[nodiscard]] std::span<const std::uint32_t> sorted() const { return order_; }

 private:
  std::vector<std::string_view> names_;
  std::vector<std::uint32_t> order_;
};

}  // namespace ingot::formats
