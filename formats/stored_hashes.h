#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/checkpoint.h"

namespace ingot::formats {

/// The tensor hash of `n_bytes` that `read(offset, out)` gives piece by piece.
Hash128 hash_range(std::uint64_t n_bytes,
                   const std::function<void(std::uint64_t, std::span<std::byte>)>& read);

/// The hash of a stored tensor, or why it could not be read; neither when its file was consumed.
struct HashedTensor {
  std::optional<Hash128> hash;
  std::optional<Error> failure;
};

/// Reads every tensor of a checkpoint once. One entry for each of stored(), in its order.
std::vector<HashedTensor> hash_stored(const Checkpoint& checkpoint, std::size_t threads);

}  // namespace ingot::formats
