#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// Numbers of tensors that are not as they should be: read in bounded pieces, of many tensors at
// once.

namespace ingot::check {

struct OddValues {
  std::uint64_t n = 0;      ///< odd elements
  std::uint64_t total = 0;  ///< all elements
  std::uint64_t first = 0;  ///< element of the first
  float value = 0;          ///< the first
};

/// Looks at a run of a tensor's bytes that cuts no number; elements are counted from its beginning.
using Look = std::function<OddValues(const formats::StoredTensor&, std::span<const std::byte>)>;

/// How a search reads.
struct OddSearch {
  const formats::Checkpoint& checkpoint;
  std::size_t threads = 1;
  /// Called at every piece from any thread; what it throws ends the search.
  std::function<void()> check_stop;
};

/// The tensors in which something is odd, in their order. Their data must be here.
std::vector<std::pair<const formats::StoredTensor*, OddValues>> find_odd(
    const OddSearch& search, std::span<const formats::StoredTensor* const> tensors,
    const Look& look);

/// Finds scales for which `is_odd` holds. Tensors that cannot be read as scales, by their dtype or
/// because their data are not here, are left out.
std::vector<std::pair<const formats::StoredTensor*, OddValues>> find_odd_scales(
    const OddSearch& search, std::span<const formats::StoredTensor* const> scales,
    bool (*is_odd)(float));

/// The first number of a stored scale; nullopt when there is none to be read.
std::optional<float> first_scale(const formats::Checkpoint& checkpoint,
                                 const formats::StoredTensor& tensor);

/// Not finite or not above zero.
bool is_bad_scale(float scale);

}  // namespace ingot::check
